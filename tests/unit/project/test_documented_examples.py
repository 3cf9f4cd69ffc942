"""The deployment examples say what the code says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from jobpool.errors import ConfigurationError
from jobpool.settings import Settings, load
from jobpool_backends.redis import keyspace

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
DEPLOY = DOCS / "deploy"
UNIT = DEPLOY / "jobpool@.service"
MANIFESTS = DEPLOY / "kubernetes"


def needed_to_stop() -> float:
    """Seconds, by the defaults, from a pool's TERM to the release of what it has killed."""
    return Settings().stop_grace + Settings().kill_grace


def test_whoever_stops_a_pool_waits_longer_than_it_needs() -> None:
    for case, file, pattern in [
        ("systemd", UNIT, r"^TimeoutStopSec=(\d+)$"),
        ("Kubernetes", MANIFESTS / "pool.yaml", r"terminationGracePeriodSeconds: (\d+)$"),
        ("container", DEPLOY / "Containerfile", r"--stop-timeout (\d+) "),
        ("container, on the page", DOCS / "deployment.md", r"--stop-timeout (\d+) "),
    ]:
        found = re.findall(pattern, file.read_text("utf-8"), re.MULTILINE)
        assert found, case
        assert all(int(seconds) >= needed_to_stop() + 10 for seconds in found), case


def test_the_environment_file_holds_settings_and_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("JOBPOOL_", "JOBS_"))]:
        monkeypatch.delenv(name)
    for line in (DEPLOY / "reports.env").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            monkeypatch.setenv(*line.split("=", 1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="a signing key must not be empty"):
        load({})
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "k" * 64)
    found = load({})
    assert found.workers == 16
    assert [name for name, _ in found.queues] == ["reports"]
    assert found.signing_keys() == ("k" * 64,)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    command = tmp_path / "srv" / "reports" / ".venv" / "bin" / "jobpool"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / "jobpool@reports.service"
    folder = str(tmp_path / "srv").replace(" ", r"\x20")
    unit.write_text(UNIT.read_text("utf-8").replace("ExecStart=/srv", f"ExecStart={folder}"))

    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, check=False)

    ours = [line for line in done.stderr.splitlines() if "jobpool@" in line]  # not what other units lack
    assert not ours


def test_the_scaler_for_redis_names_keys_that_the_backend_uses() -> None:
    found = re.findall(r'listName: "(.*)"', (MANIFESTS / "scale-on-redis.yaml").read_text("utf-8"))
    ours = keyspace.KeyNames("jobpool")
    assert found == [ours.one("reports", "ready"), ours.one("reports", "leased")]


def test_what_the_container_copies_is_there() -> None:
    lines = re.findall(r"^COPY (?!--)(.+) \S+$", (DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE)
    assert lines
    for source in " ".join(lines).split():
        assert (ROOT / source).exists(), source
