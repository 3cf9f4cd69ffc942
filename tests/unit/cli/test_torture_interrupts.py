"""What a signal does to a torture, and that what a run has found is told whatever happens to a search after it."""

from __future__ import annotations

import errno
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import Result as Answer

from jobpool_torture import command as torture
from jobpool_torture import entry_point, shrink
from jobpool_torture import view as tortureview
from jobpool_torture.options import Options
from jobpool_torture.result import Result
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import Fault
from jobpool_torture.shrink import SHORTEST

OPTIONS = Options("redis://host/0", queue="q")


class Running:
    """What a face sees of a run."""

    def __init__(self, options: Options = OPTIONS, faults: Sequence[Fault] = (), result: Result | None = None) -> None:
        self.options, self.faults, self.broker = options, faults, list[object]()
        self.result = result or Result()

    def interrupt(self) -> None:
        self.result.interrupted = True

    def go(self) -> Result:
        return self.result


@pytest.fixture
def face(tmp_path: Path) -> torture._Face:
    return torture._Face(tmp_path, verbose=False, json_=False)


def begin(face: torture._Face) -> tuple[Running, Phases]:
    """A run that is under way, and a moment of it."""
    run = Running()
    face._run = face._asked = cast(Run, run)
    face._is_under_way = True
    return run, cast(Phases, SimpleNamespace(phase="drain", result=run.result))


def test_a_signal_writes_nothing_and_the_next_moment_says_so_once(
    face: torture._Face, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Phases] = []
    face._progress = cast(tortureview.Progress, SimpleNamespace(tell=shown.append))
    run, moment = begin(face)
    face._tell(moment)
    with torture._interrupts(face._interrupt):
        signal.raise_signal(signal.SIGTERM)
    assert run.result.interrupted
    assert capsys.readouterr() == ("", "")
    face._tell(moment)
    face._tell(moment)
    assert capsys.readouterr().err.count("interrupted: healing") == 1
    assert shown == [moment] * 3


def test_a_second_signal_gives_up_unless_it_is_the_shells_word_of_the_same_closed_terminal(face: torture._Face) -> None:
    begin(face)
    with torture._interrupts(face._interrupt):
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_one_signal_ends_a_run_that_is_being_cleaned_up(face: torture._Face) -> None:
    run, _ = begin(face)
    face._is_under_way = False
    with torture._interrupts(face._interrupt), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not run.result.interrupted


def test_whoever_interrupts_what_gives_up_already_is_not_heard(face: torture._Face) -> None:
    with torture._interrupts(face._interrupt):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)


def test_what_was_ignored_stays_ignored(face: torture._Face) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with torture._interrupts(face._interrupt):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_is_no_error_of_its_progress(face: torture._Face, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(torture, "note", gone)
    monkeypatch.setattr(tortureview, "note", gone)
    monkeypatch.setattr(
        tortureview, "line", lambda _: monkeypatch.setattr(tortureview, "PROGRESS_EVERY_S", 0.0) or "asked"
    )
    with tortureview.Progress() as progress:
        face._progress = progress
        run, moment = begin(face)
        run.interrupt()
        face._tell(moment)
        assert tortureview.PROGRESS_EVERY_S == 0.0, "it was about to be shown"


def test_a_report_that_fails_leaves_no_folder_of_a_clean_run(
    jobpool: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def clean(options: Options, *_: object) -> Iterator[Running]:
        yield Running(options.on_its_queue())

    def disk_is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(entry_point, "prepared", clean)
    monkeypatch.setattr(tortureview, "report", disk_is_full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = jobpool("torture", "-b", "sqlite:///q.db")
    assert answer.exit_code == 1
    assert "No space left on device" in answer.output
    assert list(tmp_path.glob("jobpool-torture-*")) == []


def test_a_search_that_fails_loses_neither_the_report_nor_what_it_has_found(
    jobpool: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    answer = jobpool("torture", "-b", "sqlite:///q.db", "--shrink")
    assert answer.exit_code == 1
    assert "shrink02: No space left on device\n" in answer.output
    assert "LOST: job-17\n" in answer.output
    assert f"{SHORTEST}\n" in answer.output.partition("the shortest schedule that failed too: ")[2]
    assert [path.name for path in tmp_path.glob("jobpool-torture-*/*")] == [SHORTEST]
