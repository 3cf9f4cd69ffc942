"""`jobpool torture` refuses in one sentence, with the mend, what cannot work; nothing is started for that."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from calling import Jobpool

from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError
from jobpool.message.definition import JobDefinition
from jobpool_torture import command as torture
from jobpool_torture import options as limits
from jobpool_torture.options import Options, check_machine
from jobpool_torture.schedule import KINDS, dump


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where folders of runs are made that nobody named."""
    folder = tmp_path / "folders"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--minutes", "0"], 2, "0.0 is not in the range x>0"),
        (["--minutes", "0.01"], 2, "the run must be 1 to 604800 seconds, not 0.6"),
        (["--pools", "0"], 2, "--pools must be 1 to 16, not 0"),
        (["--workers", "65"], 2, "--workers must be 1 to 64, not 65"),
        (["--ttl", "0.5"], 2, "--ttl must be 1 to 60 seconds, not 0.5"),
        (["--ttl", "soon"], 2, "'soon' is not a duration"),
        (["--rate", "0"], 2, "--rate must be 0.1 to 500 jobs a second, not 0"),
        (["--faults", "child.kill,earthquake"], 2, "'earthquake' is not a kind of fault: child.kill"),
        (["--faults", ","], 2, "--faults names no kind"),
        (["--minutes", "10000", "--rate", "500"], 2, "to count 300,000,000 jobs takes about"),
        (["--faults", "net.cut"], 2, "none of these faults can be had here: sqlite:// has no network"),
        (["--queue", "a b"], 2, "queue"),
        (["--replay", "absent.json"], 2, "--replay absent.json: No such file or directory"),
        (["-b", "sync://"], 2, "sync:// lives in one process"),
        (["-b", "sqlite:///q.db?dead_max=9&dead_max_age=60"], 2, "with dead_max and dead_max_age in its URL the"),
        (["--queue", "mine", "--shrink", "--keep-all"], 2, "--shrink runs in --queue again and again"),
        (["-b", "memory://"], 2, "name a broker that they share, such as --backend sqlite:///torture.db"),
        (["-b", "redis://127.0.0.1:1"], 1, "nothing listens there"),
        (["-b", "sqlite:////nowhere/at/all.db"], 2, "does not exist: create it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_work_is_a_sentence(
    jobpool: Jobpool, own_folders: Path, words: list[str], code: int, text: str
) -> None:
    result = jobpool("torture", *words, code=code)
    assert text in result.output
    assert "fault in jobpool" not in result.output
    assert list(own_folders.iterdir()) == []


def test_a_queue_that_is_not_empty_is_left_alone(jobpool: Jobpool, tmp_path: Path) -> None:
    backend = open_backend(f"sqlite:///{tmp_path}/q.db")
    backend.enqueue(JobDefinition("report", queue="mine"))
    result = jobpool("torture", "-b", f"sqlite:///{tmp_path}/q.db", "-Q", "mine", code=2)
    assert "queue 'mine' is not empty (1 waiting)" in result.output
    assert backend.stats("mine").waiting == 1
    backend.close()


def test_a_folder_that_is_not_empty_is_left_alone(jobpool: Jobpool, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    assert "--directory full is not empty: name a new one" in jobpool("torture", "--directory", "full", code=2).output
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter"]


ABOUT = {"seed": 1, "seconds": 2.0, "pools": 2, "workers": 2, "ttl": 1.0, "rate": 5.0}


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("hello", [], "it is not a schedule"),
        (dump([], ABOUT), ["--seed", "3"], "--replay takes --seed from its file: leave it out"),
    ],
    ids=["no schedule", "options besides"],
)
def test_a_schedule_that_cannot_be_replayed(
    jobpool: Jobpool, tmp_path: Path, text: str, words: list[str], said: str
) -> None:
    (tmp_path / "s.json").write_text(text)
    assert said in jobpool("torture", "--replay", "s.json", *words, code=2).output


def test_too_little_memory_is_told_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(available: int) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
        check_machine(options, tmp_path / "not" / "yet")

    options = Options("sqlite:///q.db", pools=3, workers=4)
    needed = 3 * (limits.POOL_BYTES + 4 * limits.CHILD_BYTES)
    jobs = round(options.seconds * options.rate) * limits.JOB_BYTES
    check(needed + jobs)
    with pytest.raises(ConfigurationError, match=r"to count 6,000 jobs takes about .* --minutes or --rate"):
        check(needed + jobs - 1)
    with pytest.raises(ConfigurationError, match=r"3 pools with 4 workers each take about .* ask for fewer"):
        check(needed - 1)


def test_a_disk_that_cannot_hold_the_ledger_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, asked = Options("sqlite:///q.db"), []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=6000 * limits.FOLDER_BYTES - 1)

    monkeypatch.setattr("jobpool_torture.options.shutil.disk_usage", usage)
    with pytest.raises(ConfigurationError, match=r"the ledger takes about 12M, and .* are free at .*: name a folder"):
        check_machine(options, tmp_path / "not" / "yet")
    assert asked == [tmp_path]


def test_help_lists_every_kind_of_fault(jobpool: Jobpool) -> None:
    result = jobpool("torture", "--faults", "help", code=0)
    assert [line.split()[0] for line in result.output.splitlines()[1:]] == list(KINDS)


def test_every_option_of_the_run_is_one_of_the_command() -> None:
    names = {param.name for param in torture.torture.params}
    assert set(torture.OF_THE_RUN) <= names
    assert json.loads(dump([], ABOUT))["about"] == ABOUT
