"""`jobpool torture`: what it refuses, what a signal does to it, and how its end reads. Nothing is started."""

from __future__ import annotations

import errno
import json
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from calling import Jobpool

from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError
from jobpool.message.definition import JobDefinition
from jobpool_torture import command, entry_point, shrink
from jobpool_torture import options as limits
from jobpool_torture import view as tortureview
from jobpool_torture.entry_point import AttendedRuns
from jobpool_torture.options import Options, check_machine
from jobpool_torture.result import MEANINGS, Result, Tally
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import KINDS, Fault, dump
from jobpool_torture.shrink import SHORTEST
from jobpool_torture.view import SHOWN_IDS, document, head, line, report


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


def test_a_backend_that_is_not_ours_gets_no_option_that_it_may_not_know() -> None:
    options = Options("sqlite:///q.db", pools=1)
    assert options.timed("sqlite:///q.db") == "sqlite:///q.db?timeout=1.25"
    assert options.timed("folder:///q") == "folder:///q"


def test_every_option_of_the_run_is_one_of_the_command() -> None:
    names = {param.name for param in command.torture.params}
    assert set(entry_point.OF_THE_RUN) <= names
    assert json.loads(dump([], ABOUT))["about"] == ABOUT


MINE = Options("redis://host/0", queue="q")


class Running:
    """What attended runs see of a run."""

    def __init__(self, options: Options = MINE, faults: Sequence[Fault] = (), result: Result | None = None) -> None:
        self.options, self.faults, self.broker = options, faults, list[object]()
        self.result = result or Result()

    def interrupt(self) -> None:
        self.result.interrupted = True

    def go(self) -> Result:
        return self.result


@pytest.fixture
def runs(tmp_path: Path) -> AttendedRuns:
    return AttendedRuns(MINE, tmp_path, verbose=False, json_=False)


def begin(runs: AttendedRuns) -> tuple[Running, Phases]:
    """A run that is under way, and a moment of it."""
    run = Running()
    runs._run = runs._asked = cast(Run, run)
    return run, cast(Phases, SimpleNamespace(phase="drain", result=run.result))


def test_a_signal_writes_nothing_and_the_next_moment_says_so_once(
    runs: AttendedRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Phases] = []
    runs._progress = cast(tortureview.Progress, SimpleNamespace(tell=shown.append))
    run, moment = begin(runs)
    runs._tell(moment)
    with entry_point._interrupts(runs._interrupt):
        signal.raise_signal(signal.SIGTERM)
    assert run.result.interrupted
    assert capsys.readouterr() == ("", "")
    runs._tell(moment)
    runs._tell(moment)
    assert capsys.readouterr().err.count("interrupted: healing") == 1
    assert shown == [moment] * 3


def test_a_second_signal_gives_up_unless_it_is_the_shells_word_of_the_same_closed_terminal(runs: AttendedRuns) -> None:
    begin(runs)
    with entry_point._interrupts(runs._interrupt):
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_one_signal_ends_a_run_that_is_being_cleaned_up(runs: AttendedRuns) -> None:
    run, _ = begin(runs)
    runs._run = None
    with entry_point._interrupts(runs._interrupt), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not run.result.interrupted


def test_whoever_interrupts_what_gives_up_already_is_not_heard(runs: AttendedRuns) -> None:
    with entry_point._interrupts(runs._interrupt):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)


def test_what_was_ignored_stays_ignored(runs: AttendedRuns) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with entry_point._interrupts(runs._interrupt):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_is_no_error_of_its_progress(runs: AttendedRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(entry_point, "note", gone)
    monkeypatch.setattr(tortureview, "note", gone)
    monkeypatch.setattr(
        tortureview, "line", lambda _: monkeypatch.setattr(tortureview, "PROGRESS_EVERY_S", 0.0) or "asked"
    )
    with closing(tortureview.Progress()) as progress:
        runs._progress = progress
        run, moment = begin(runs)
        run.interrupt()
        runs._tell(moment)
        assert tortureview.PROGRESS_EVERY_S == 0.0, "it was about to be shown"


def test_a_report_that_fails_leaves_no_folder_of_a_clean_run(
    jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def clean(options: Options, *_: object) -> Iterator[Running]:
        yield Running(options.on_its_queue())

    def disk_is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(entry_point, "prepared", clean)
    monkeypatch.setattr(tortureview, "report", disk_is_full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = jobpool("torture", "-b", "sqlite:///q.db", code=1)
    assert "No space left on device" in answer.output
    assert list(tmp_path.glob("jobpool-torture-*")) == []


def test_a_search_that_fails_loses_neither_the_report_nor_what_it_has_found(
    jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def fails(options: Options, *_: object) -> Iterator[Running]:
        result = Result()
        result.add("LOST", ["job-17"])
        yield Running(options.on_its_queue(), [Fault(0, 1.5, "child.kill")], result)

    def disk_is_full(_: Options, folder: Path, *__: object) -> None:
        (folder / SHORTEST).write_text("{}")
        raise OSError(errno.ENOSPC, "No space left on device", "shrink02")

    monkeypatch.setattr(entry_point, "prepared", fails)
    monkeypatch.setattr(shrink, "find_shorter", disk_is_full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = jobpool("torture", "-b", "sqlite:///q.db", "--shrink", code=1)
    assert "shrink02: No space left on device\n" in answer.output
    assert "LOST: job-17\n" in answer.output
    assert f"{SHORTEST}\n" in answer.output.partition("the shortest schedule that failed too: ")[2]
    assert [path.name for path in tmp_path.glob("jobpool-torture-*/*")] == [SHORTEST]


OPTIONS = Options("redis://:secret@host/0", seed=17, queue="torture-1", seconds=60.0)
FAULTS = [Fault(0, 1.5, "child.kill"), Fault(1, 2.0, "master.stop", 1, 0, 3.0)]


def a_run(result: Result) -> Run:
    return cast(Run, SimpleNamespace(options=OPTIONS, faults=FAULTS, broker=[], result=result))


def test_the_head_says_what_is_done_and_what_is_left_out_and_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    head(
        a_run(Result(left_out={"net.cut": "no network", "net.hole": "no network", "clock.jump": "no clock"})),
        with_schedule=True,
    )
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "torture of redis://:***@host/0, queue torture-1, seed 17"
    assert shown[1].startswith("3 pools with 4 workers each, ttl 5 s, 20 jobs/s, 2 faults in 1m00s: child.kill")
    assert shown[2:4] == ["left out: net.cut, net.hole: no network", "left out: clock.jump: no clock"]
    assert [row.split()[2] for row in shown[4:]] == ["child.kill", "master.stop"]


def test_a_moment_is_one_line() -> None:
    result = Result(tally=Tally(enqueued=1200, done=1000, dead=3), struck=Counter(a=1))
    now = SimpleNamespace(phase="drain", left=61.0, pending=197, result=result)
    assert line(cast(Phases, now)) == (
        "drain 1m01s left: 1,200 enqueued, 1,000 done, 3 dead, 197 to do; 0 failures, 0 crashes, 0 refused,"
        " 0 unanswered; 1 fault"
    )


def test_a_clean_report_has_every_count(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result(late=[0.5, 1.0], descriptors={"pool1": {"socket": 1}, "pool2": {}})
    report(a_run(result), None, None, "jobpool torture --seed 17")
    shown = capsys.readouterr().out
    for name in MEANINGS:
        assert f"\n{name} " in shown
    assert "\nclean.  jobpool " in shown
    assert "timeouts: 2 in pools that nothing held up, given their verdict 0.50 s (p50), 1.00 s (p99)" in shown
    assert "\ndescriptors: pool1 +1 socket, pool2 as before\n" in shown
    assert shown.endswith("\nagain: jobpool torture --seed 17\n")
    assert "ledger" not in shown


def test_a_run_that_has_shown_nothing_is_not_called_clean(capsys: pytest.CaptureFixture[str]) -> None:
    report(a_run(Result(planned=2, missed=2)), None, None, "again")
    why = "none of the 2 faults of the schedule found anything to strike"
    assert f"\nno violation, and not clean: {why}.  jobpool " in capsys.readouterr().out


def test_a_violation_is_named_with_the_first_ids_and_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result()
    result.add("LOST", [f"job-{number:02d}" for number in range(SHOWN_IDS + 2)])
    result.add("FD", [])
    report(a_run(result), Path("/somewhere"), Path("/somewhere/shortest.json"), "again")
    shown = capsys.readouterr().out
    assert shown.count("\nLOST: job-") == SHOWN_IDS
    assert "\nLOST: … and 2 more\n" in shown
    assert "FD:" not in shown
    assert f"\n{SHOWN_IDS + 2} violations.  jobpool " in shown
    assert "left.jsonl: /somewhere\n" in shown
    assert "/somewhere/shortest.json\n" in shown


def test_the_document_has_all_of_it() -> None:
    result = Result(interrupted=True, left=3)
    result.add("STUCK", ["b", "a"])
    told = document(a_run(result), None, None, "again")
    assert told["backend"] == "redis://:***@host/0"
    assert told["counts"] == dict.fromkeys(MEANINGS, 0) | {"STUCK": 2}
    assert told["violations"] == {"STUCK": ["a", "b"]}
    assert (told["clean"], told["interrupted"], told["left"]) == (False, True, 3)
    assert [fault["kind"] for fault in told["schedule"]] == ["child.kill", "master.stop"]
    assert {"jobpool", "python"} == set(told["versions"])
