"""Jobs that hang in C code, in any queue: when their processes die. Imports nothing of jobpool: peers run it too."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from bench.note_file import note
from bench.processes import death_of

TIMEOUT = 1.0
"""Seconds, of the job."""

AT_ONCE = 2
"""Jobs that hang beside each other, on as many workers."""

GIVE_UP = 10.0
"""Seconds after which a job that hangs counts as one that nobody ends. Pebble takes 7.1 for the second of two."""

START_LIMIT = 60.0
LOOK_EVERY = 0.002


def hang(path: str) -> None:
    """Note when it begins; then make one call into C that takes hours and ignores signals."""
    note(path, os.getpid(), time.monotonic())
    sum(range(10**13))


def deaths(begin: Callable[[], object], path: str, turns: int, limit: float) -> list[float]:
    """Return seconds from the first line of each job to the end of its process.

    Args:
        begin: Starts a job that hangs; its notes go to `path`.
        path: Of a new file.
        turns: How often `AT_ONCE` of them are begun. The last turn is that in which one outlives the limit.
        limit: Seconds after which it counts as infinite.
    """
    found: list[float] = []
    with ThreadPoolExecutor(AT_ONCE) as watchers:
        while len(found) < turns * AT_ONCE and math.inf not in found:
            hung = []
            for number in range(len(found), len(found) + AT_ONCE):
                begin()
                pid, at = _line(path, number)
                hung.append((pid, at, watchers.submit(death_of(pid, limit))))
            for pid, at, ended in hung:
                found.append(ended.result() - at)
                if math.isinf(found[-1]):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)  # it would go on for hours
    return found


def _line(path: str, number: int) -> tuple[int, float]:
    give_up = time.monotonic() + START_LIMIT
    while time.monotonic() < give_up:
        lines = Path(path).read_text().splitlines() if os.path.exists(path) else []
        if len(lines) > number:
            pid, at = lines[number].split()
            return int(pid), float(at)
        time.sleep(LOOK_EVERY)
    raise TimeoutError(f"job {number} has not begun within {START_LIMIT:g} s")
