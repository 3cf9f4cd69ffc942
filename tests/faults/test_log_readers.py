"""The reader of a pool's log stands still: jobs run on, timeouts are enforced, a stop ends in time (row 31)."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.faultmoves import Figure, in_time
from support.poolrig import APP, LIMIT, PoolProcess, Rig
from support.tiers import more
from support.waiting import wait_until

from jobpool.telemetry.logs import DRAIN_LIMIT_S

TIMEOUT = 0.5
STOP_LIMIT_S = 5.0
"""Seconds for a stop of an idle pool, beyond those for which it waits for the reader of its log."""

SCHEDULE = """
_scheduler = jobpool.Scheduler()
_scheduler.define("work").named("each-minute").queue("default").every_minute().misfire("all(5)")
"""

XOFF, XON = b"\x13", b"\x11"


class Reader:
    """The reading end of a log, which stands still until `read_on`.

    Attributes:
        writing: The descriptor for the pool.
    """

    def __init__(self, reading: int, writing: int, kept: int = 0) -> None:
        self._reading = reading
        self.writing = writing
        self._kept = kept

    def wait_full(self) -> None:
        """Wait until a write would wait."""
        wait_until(lambda: not select.select([], [self.writing], [], 0)[1], LIMIT, "the log takes nothing more")

    def read_on(self) -> str:
        """Read to the end, which comes when the last process has closed the log; without what was there before."""
        os.close(self.writing)
        if os.isatty(self._reading):
            os.write(self._reading, XON)
        read = bytearray()
        with suppress(OSError):  # EIO is how a terminal ends
            while some := os.read(self._reading, 65536):
                read += some
        return read[self._kept :].decode()


@contextmanager
def full_pipe() -> Iterator[Reader]:
    """A pipe with no room for another byte."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    kept = 0
    with suppress(BlockingIOError):
        while True:
            kept += os.write(writing, b"-" * 4096)
    os.set_blocking(writing, True)
    yield from _closing(Reader(reading, writing, kept))


@contextmanager
def stopped_terminal() -> Iterator[Reader]:
    """A terminal after Ctrl-S."""
    reading, writing = os.openpty()
    os.write(reading, XOFF)
    yield from _closing(Reader(reading, writing))


def _closing(reader: Reader) -> Iterator[Reader]:
    try:
        reader.wait_full()
        yield reader
    finally:
        for descriptor in (reader._reading, reader.writing):
            with suppress(OSError):
                os.close(descriptor)


READERS = {"pipe": full_pipe, "terminal": stopped_terminal}


def wait_worked(rig: Rig) -> None:
    """Good jobs, failing ones and one that hangs in C: wait until each has ended as it must."""
    good = rig.enqueue_many("work", [{}] * 50)
    failing = rig.enqueue_many("fail", [{"times": 9}] * 20, max_retries=0)
    hanging = rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=TIMEOUT, max_retries=0)
    rig.wait_drained()
    assert {line.id for line in rig.ends()} >= set(good)
    assert {ident: message.reason for ident, message in rig.dead().items()} == {
        **dict.fromkeys(failing, "failed"),
        hanging: "timeout",
    }


def assert_stops(pool: PoolProcess, figure: Figure, status: int = 0) -> None:
    """TERM, and it ends in time with that status."""
    pool.send(signal.SIGTERM)
    figure("stopped after TERM", in_time(pool.wait, DRAIN_LIMIT_S + STOP_LIMIT_S), "s")
    assert pool.wait() == status


@pytest.mark.row(31)
@pytest.mark.on("sqlite")
@pytest.mark.parametrize("stands_still", ["pipe", *more(("terminal",))])
def test_a_pool_whose_log_nobody_reads_works_and_stops(rig: Rig, figure: Figure, stands_still: str) -> None:
    with READERS[stands_still]() as reader:
        pool = rig.start_pool("--kill-grace", "0.2", stderr=reader.writing).wait_ready(2)
        wait_worked(rig)
        assert_stops(pool, figure)
    rig.account().assert_clean()
    rig.assert_no_processes_left()


@pytest.mark.row(31)
@pytest.mark.on("sqlite")
def test_a_scheduler_whose_log_nobody_reads_fires_and_stops_with_its_pool(rig: Rig, figure: Figure) -> None:
    app = rig.directory / "the_app.py"
    app.write_text(APP.read_text() + SCHEDULE)
    with full_pipe() as reader:
        pool = rig.start_pool("--cron", app=app, stderr=reader.writing).wait_ready(2)
        wait_until(lambda: rig.ends(), LIMIT, "it has fired")
        assert_stops(pool, figure)
    rig.assert_no_processes_left()


@pytest.mark.row(31)
@pytest.mark.on("sqlite")
def test_a_pool_that_draws_its_progress_on_a_stopped_terminal_ends_by_itself(rig: Rig) -> None:
    rig.enqueue_many("fail", [{"times": 9}] * 5, max_retries=0)
    with stopped_terminal() as reader:
        flags = ("--until-empty", "--fail-on-dead", "--progress", "--log-format", "text")
        assert rig.run_pool(*flags, stderr=reader.writing).wait() == 1
    rig.assert_no_processes_left()


@pytest.mark.row(31)
@pytest.mark.on("sqlite")
def test_an_error_that_nobody_reads_ends_the_pool_with_its_status(rig: Rig, tmp_path: Path) -> None:
    app = tmp_path / "broken.py"
    app.write_text("raise RuntimeError('half a deploy')")
    with full_pipe() as reader:
        assert rig.run_pool(app=app, stderr=reader.writing).wait() == 1
    rig.assert_no_processes_left()


@pytest.mark.row(31)
@pytest.mark.on("sqlite")
@pytest.mark.parametrize("stands_still", ["terminal", *more(("pipe",))])
def test_a_reader_that_comes_back_gets_every_line_in_order(rig: Rig, stands_still: str) -> None:
    with READERS[stands_still]() as reader, ThreadPoolExecutor(1) as thread:
        pool = rig.start_pool("--kill-grace", "0.2", stderr=reader.writing).wait_ready(2)
        wait_worked(rig)
        reading = thread.submit(reader.read_on)
        assert pool.stop() == 0
        entries = [json.loads(line) for line in reading.result(LIMIT).splitlines()]
    entries = [entry for entry in entries if "left out" not in entry["event"]]  # thinned out, and summed up at the end
    assert [entries[0]["event"], entries[-1]["event"]] == ["pool starts", "stopped"]
    assert [entry["time"] for entry in entries] == sorted(entry["time"] for entry in entries)
    assert "a message is dead" in {entry["event"] for entry in entries}
