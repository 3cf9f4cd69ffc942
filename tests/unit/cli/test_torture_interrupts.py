"""What a signal does to a torture, and that what a run has found is told whatever happens to a search after it."""

from __future__ import annotations

import errno
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import Result as Answer

from jobpool_torture import command as torture
from jobpool_torture import entry_point
from jobpool_torture import view as tortureview
from jobpool_torture.entry_point import SHORTEST, Watcher
from jobpool_torture.options import Options
from jobpool_torture.result import Result
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import Fault

OPTIONS = Options("redis://host/0", queue="q")
MOMENT = cast(Phases, SimpleNamespace(phase="drain"))


class Running:
    """What a face sees of a run."""

    def __init__(self, options: Options = OPTIONS, faults: Sequence[Fault] = (), result: Result | None = None) -> None:
        self.options, self.faults, self.broker = options, faults, list[object]()
        self.result = result or Result()

    def interrupt(self) -> None:
        self.result.interrupted = True


@pytest.fixture
def face(tmp_path: Path) -> torture._Face:
    return torture._Face(tmp_path, verbose=False, json_=False)


def watcher(face: torture._Face, shown: list[Phases]) -> Any:
    face._progress = cast(tortureview.Progress, SimpleNamespace(tell=shown.append))
    return face


def test_a_signal_writes_nothing_and_the_next_moment_says_so_once(
    face: torture._Face, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Phases] = []
    told, run = watcher(face, shown), Running()
    told.begun(run)
    told.tell(MOMENT)
    capsys.readouterr()
    with torture._interrupts(face._interrupt):
        signal.raise_signal(signal.SIGTERM)
    assert run.result.interrupted
    assert capsys.readouterr() == ("", "")
    told.tell(MOMENT)
    told.tell(MOMENT)
    assert capsys.readouterr().err.count("interrupted: healing") == 1
    assert shown == [MOMENT] * 3


def test_a_second_signal_gives_up_unless_it_is_the_shells_word_of_the_same_closed_terminal(face: torture._Face) -> None:
    watcher(face, []).begun(Running())
    with torture._interrupts(face._interrupt):
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_between_two_runs_of_a_search_one_signal_ends_it(face: torture._Face) -> None:
    told, run = watcher(face, []), Running()
    told.begun(run)
    told.over()
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
        told, run = watcher(face, []), Running()
        face._progress = progress
        told.begun(run)
        run.interrupt()
        told.tell(MOMENT)
        assert tortureview.PROGRESS_EVERY_S == 0.0, "it was about to be shown"


def test_a_search_that_fails_loses_neither_the_report_nor_what_it_has_found(
    jobpool: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(options: Options, _: Path, watcher: Watcher, __: object) -> Result:
        result = Result()
        result.add("LOST", ["job-17"])
        watcher.begun(cast(Run, Running(options.on_its_queue(), [Fault(0, 1.5, "child.kill")], result)))
        return result

    def disk_is_full(_: Options, folder: Path, *__: object) -> None:
        (folder / SHORTEST).write_text("{}")
        raise OSError(errno.ENOSPC, "No space left on device", "shrink02")

    monkeypatch.setattr(entry_point, "run_once", fails)
    monkeypatch.setattr(entry_point, "find_shorter", disk_is_full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = jobpool("torture", "-b", "sqlite:///q.db", "--shrink", code=1)
    assert "shrink02: No space left on device\n" in answer.output
    assert "LOST: job-17\n" in answer.output
    assert f"{SHORTEST}\n" in answer.output.partition("the shortest schedule that failed too: ")[2]
    assert [path.name for path in tmp_path.glob("jobpool-torture-*/*")] == [SHORTEST]
