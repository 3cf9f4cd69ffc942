"""A pool's log comes whole, through a pipe that may stand full: whoever writes to it waits then."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.descriptors import open_descriptors
from support.waiting import wait_until

from jobpool_torture.logpipe import FILLING, PIPE_BYTES, LogPipe


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[LogPipe]:
    (tmp_path / "log").write_text("before\n")
    with closing(LogPipe(tmp_path / "log")) as made:
        yield made


def takes_more(pipe: LogPipe) -> bool:
    return bool(select.select([], [pipe.writer], [], 0)[1])


def test_what_is_written_is_appended_and_more_than_a_pipe_holds(pipe: LogPipe, tmp_path: Path) -> None:
    line = b"x" * 99 + b"\n"
    os.write(pipe.writer, b"one\n")
    for _ in range(3 * PIPE_BYTES // len(line)):
        os.write(pipe.writer, line)
    whole = len("before\none\n") + 3 * PIPE_BYTES // len(line) * len(line)
    wait_until(lambda: (tmp_path / "log").stat().st_size == whole, what="all has come")


def test_a_writer_waits_while_nobody_reads_and_goes_on_afterwards(pipe: LogPipe, tmp_path: Path) -> None:
    pipe.hold()
    assert not takes_more(pipe)
    assert os.get_blocking(pipe.writer), "the pool's own end is as it was"
    with subprocess.Popen(["echo", "late"], stdout=pipe.writer) as writer:
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.1)
        pipe.go_on()
        assert writer.wait(10.0) == 0
    pipe.drain()
    assert (tmp_path / "log").read_text() == "before\nlate\n"


def test_what_is_there_can_be_had_though_nobody_reads(pipe: LogPipe, tmp_path: Path) -> None:
    os.write(pipe.writer, b"said at the end\n")
    pipe.hold()
    pipe.drain()
    assert (tmp_path / "log").read_text().endswith("said at the end\n")
    assert takes_more(pipe)


def test_it_closes_what_it_opened_though_somebody_still_could_write(tmp_path: Path) -> None:
    before = open_descriptors()
    pipe = LogPipe(tmp_path / "log")
    with subprocess.Popen(["sleep", "600"], stdout=pipe.writer) as stranger:
        os.write(pipe.writer, FILLING + b"end\n")
        pipe.hold()
        pipe.close()
        stranger.kill()
    assert open_descriptors() <= before
    assert (tmp_path / "log").read_text() == "end\n"
