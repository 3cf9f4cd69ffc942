"""A file of counters that worker processes share: who has begun, how many jobs each has done, and when the last ended.

One page a process and one writer a page, so that a job costs two stores into memory and no command of a broker. The
first job of each process waits at a gate: all are there, and warm, when it opens. Imports nothing but the standard
library, because peers of jobpool run it in an environment of their own.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

VARIABLE = "BENCH_COUNTERS"
"""Of the environment: where the file is; not set = jobs are not counted."""

PAGE = 4096
PAGES = 65
"""The gate's, and one for each of 64 processes."""

_PID = struct.Struct("=q")
_DONE = struct.Struct("=qd")
"""Jobs done, and CLOCK_MONOTONIC seconds at the end of the last."""

_AT_DONE = 8
_LOOK_EVERY = 0.0005


class JobCounters:
    """The file, for the program that measures."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(PAGE * PAGES))
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), PAGE * PAGES)

    def close(self) -> None:
        self._map.close()

    def open_gate(self) -> float:
        """Let the jobs run; the time at which they began to."""
        now = time.monotonic()
        self._map[0] = 1
        return now

    def pids(self) -> list[int]:
        """Return the processes that have begun a job."""
        found = [_PID.unpack_from(self._map, page * PAGE)[0] for page in range(1, PAGES)]
        return [pid for pid in found if pid]

    def counts(self) -> dict[int, int]:
        """Return how many jobs each process has ended."""
        starts = [page * PAGE for page in range(1, PAGES)]
        found = {_PID.unpack_from(self._map, at)[0]: _DONE.unpack_from(self._map, at + _AT_DONE)[0] for at in starts}
        return {pid: count for pid, count in found.items() if pid}

    def done(self) -> tuple[int, float]:
        """Return how many jobs have ended, and when the last one did."""
        pages = [_DONE.unpack_from(self._map, page * PAGE + _AT_DONE) for page in range(1, PAGES)]
        return sum(count for count, _ in pages), max(at for _, at in pages)


def count() -> None:
    """Count the end of a job in this process. The first one waits for the gate before that."""
    global _count
    if _count is None:
        _count = _counter()
    _count()


_count: Callable[[], None] | None = None


def _forget() -> None:
    global _count
    _count = None


os.register_at_fork(after_in_child=_forget)


def _counter() -> Callable[[], None]:
    path = os.environ.get(VARIABLE)
    if path is None:
        return lambda: None
    with open(path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), PAGE * PAGES)
        fcntl.flock(file, fcntl.LOCK_EX)
        page = next(page for page in range(1, PAGES) if not _PID.unpack_from(shared, page * PAGE)[0])
        _PID.pack_into(shared, page * PAGE, os.getpid())
        fcntl.flock(file, fcntl.LOCK_UN)  # closing would not do: the map keeps a duplicate of the file
    while not shared[0]:
        time.sleep(_LOOK_EVERY)
    done = 0
    write, where, clock = _DONE.pack_into, page * PAGE + _AT_DONE, time.monotonic

    def add() -> None:
        nonlocal done
        done += 1
        write(shared, where, done, clock())

    return add
