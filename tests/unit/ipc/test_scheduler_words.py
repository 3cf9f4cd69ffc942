"""What a scheduler says to its master, over a socket."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpool.ipc.line_budget import SAID_AT_ONCE
from jobpool.ipc.program import OutputLines
from jobpool.ipc.scheduler_process import FIRED_AT_ONCE, MAX_RECORD_BYTES, READY, MasterPipe, SchedulerProcess


class Line:
    """A scheduler that this process plays itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subprocess, "Popen", self._start)
        self.process = SchedulerProcess(cast(Any, None), os.environ)
        self.pipe = MasterPipe(self.there)
        os.set_blocking(self.there, False)

    def _start(self, _argv: list[str], pass_fds: list[int], **_: Any) -> SimpleNamespace:
        self.there = os.dup(pass_fds[0])
        return SimpleNamespace(pid=os.getpid())


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    line = Line(monkeypatch)
    yield line
    os.close(line.there)
    line.process.close()


def test_lateness_is_taken_out_of_what_it_says(line: Line) -> None:
    line.pipe.say(READY)
    line.pipe.fired([0.0, 12.3456])
    assert line.process.hear()
    assert (line.process.is_ready, line.process.fired, line.process.error) == (True, [0.0, 12.346], "")
    line.pipe.fired([43200.0])
    line.pipe.say(b"the broker\ndoes not\nanswer")
    assert line.process.hear()
    assert line.process.fired == [0.0, 12.346, 43200.0]
    assert line.process.error == "the broker\ndoes not\nanswer"


def test_it_tells_that_it_turns_and_which_job_it_runs(line: Line) -> None:
    for _ in range(3):
        line.pipe.turn()
    assert os.read(line.process.line, 100)
    with pytest.raises(BlockingIOError):  # at most once a second
        os.read(line.process.line, 100)
    line.pipe.begin("clean\n up" + "x" * 10_000)
    line.process.hear()
    assert line.process.turned == "clean up" + "x" * 192
    line.pipe.turn()
    line.process.hear()
    assert (line.process.turned, line.process.error) == ("", "")


def test_a_master_that_stands_still_keeps_no_scheduler_waiting(line: Line) -> None:
    late = [float(number) for number in range(FIRED_AT_ONCE)]
    for _ in range(2000):  # more than a socket takes
        line.pipe.fired(late)
    line.process.hear()
    assert len(line.process.fired) % FIRED_AT_ONCE == 0
    assert line.process.fired[:FIRED_AT_ONCE] == late


@pytest.mark.parametrize(
    "rubbish", [b"\x01rubbish", b"\x011 nan", b"\x01inf", b"\x011e999 2", b"\x01\xff", b"\x02\xff\x00"]
)
def test_rubbish_of_a_job_in_its_process_tells_of_no_firing(line: Line, rubbish: bytes) -> None:
    os.write(line.there, rubbish)
    line.pipe.fired([0.5])
    assert line.process.hear()
    assert line.process.fired == [0.5]


def test_a_job_in_its_process_that_writes_without_an_end_does_not_keep_the_master(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "read", lambda _fd, most: b"x" * most)
    assert line.process.hear()


def test_the_lines_that_it_prints_are_bounded() -> None:
    output = OutputLines(MAX_RECORD_BYTES)

    def read(text: bytes) -> list[str]:
        os.write(output.writing, text)
        return output.read()

    assert read(b"one\ntw") == ["one"]
    assert read(b"o\n\n  \n" + b"x" * 50_000 + b"\n") == ["two", "x" * MAX_RECORD_BYTES]
    *shown, left_out = read(b"flood\n" * 5_000)
    assert set(shown) == {"flood"}
    assert SAID_AT_ONCE - 10 < len(shown) < SAID_AT_ONCE + 10
    assert left_out == f"[… {5_000 - len(shown)} lines left out …]"
    assert not output.ended
    output.close()
