"""The wait of the loop, when the process is interrupted in it for longer than it was to last."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from jobpool.master import events as ev
from jobpool.master.child_processes import ChildProcesses

WAIT = 0.2
"""Seconds."""


def test_what_came_while_the_process_was_stopped_is_seen_when_it_goes_on() -> None:
    """As after SIGSTOP and SIGCONT: the system call is interrupted, and its time is over before it could go on."""
    children = ChildProcesses(None, None, {})  # type: ignore[arg-type]  # it starts nothing here
    reading, writing = os.pipe()
    seen: list[ev.Event] = [ev.ReapDone([])]
    children.watch(reading, lambda: seen)

    def sleep_past_the_wait(*_: Any) -> None:
        time.sleep(2 * WAIT)
        os.write(writing, b"x")

    previous = signal.signal(signal.SIGALRM, sleep_past_the_wait)
    try:
        signal.setitimer(signal.ITIMER_REAL, WAIT / 4)
        assert children.poll(WAIT) == seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        os.close(reading)
        os.close(writing)
        children.close()
