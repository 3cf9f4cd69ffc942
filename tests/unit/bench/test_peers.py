"""Where the peers live, and how they are started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.peers import environment, fleet
from bench.programs import ROOT


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        pytest.param(ROOT / ".venv", ".venv-peers", id="the usual Python"),
        pytest.param(ROOT / ".venv-3.13", ".venv-peers-3.13", id="another one"),
        pytest.param(Path("/usr"), ".venv-peers", id="none of ours"),
    ],
)
def test_each_python_has_its_own_environment_of_peers(prefix: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(prefix))

    assert environment.directory() == ROOT / name


def test_an_environment_made_from_other_requirements_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("one==1\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", requirements)
    monkeypatch.setattr(environment, "directory", lambda: tmp_path)
    assert not environment.exists()

    (tmp_path / ".installed").write_text(f"{sys.version}\none==1\n")
    assert environment.exists()

    requirements.write_text("one==2\n")
    assert not environment.exists()


@pytest.mark.parametrize(
    ("peer", "processes"), [(fleet.CELERY, 16), (fleet.DRAMATIQ, 16), (fleet.PROCRASTINATE, 4), (fleet.PGQUEUER, 2)]
)
def test_a_peer_knows_how_many_processes_run_its_jobs(peer: fleet.Peer, processes: int) -> None:
    assert peer.processes(16) == processes


def test_a_command_is_given_the_number_of_workers() -> None:
    command = fleet.CELERY.command(7)

    assert command[command.index("--concurrency") + 1] == "7"
    assert not [word for word in command if "{" in word]
