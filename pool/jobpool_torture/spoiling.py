"""Damage by a job to its process, so that later jobs would fail in it: limits, timers, identity, interpreter.

A fault `child.spoil` leaves an order in the folder of its pool. The next plain job of that pool takes it, does its own
work, and then spoils its process in the way that the order names. It harms no process but that child.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ORDERS_FOLDER = "TORTURE_ORDERS"  # the environment variable that names the folder of the orders
NOBODY_ID = 65534
BLOCKABLE = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
SMALL_MEMORY_BYTES = 1 << 20  # bytes of address space: less than any interpreter has
SHALLOW_CALLS = 8  # calls below the one that spoils: enough for it to return, too few for another job


def _shallow() -> None:
    depth, frame = 0, sys._getframe().f_back
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + SHALLOW_CALLS)


WAYS: dict[str, Sequence[Callable[[], object]]] = {  # ways open to any user
    "files may not grow": [partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))],
    "no memory": [partial(resource.setrlimit, resource.RLIMIT_AS, (SMALL_MEMORY_BYTES, SMALL_MEMORY_BYTES))],
    "no more descriptors": [partial(resource.setrlimit, resource.RLIMIT_NOFILE, (3, 3))],
    "alarms": [partial(signal.setitimer, signal.ITIMER_REAL, 0.02, 0.02)],
    "alarms by CPU time": [partial(signal.setitimer, signal.ITIMER_PROF, 0.02, 0.02)],
    "all signals blocked": [partial(signal.pthread_sigmask, signal.SIG_BLOCK, BLOCKABLE)],
    "a shallow stack": [_shallow],
    "nothing to import from": [sys.path.clear],
    "another folder and umask": [partial(os.umask, 0o777), partial(os.chdir, "/proc/self/fdinfo")],
}
OF_ROOT: dict[str, Sequence[Callable[[], object]]] = {  # ways open to root only
    "another user": [partial(os.setgroups, []), partial(os.setgid, NOBODY_ID), partial(os.setuid, NOBODY_ID)],
    "another root": [partial(os.chroot, "/proc/self/fdinfo"), partial(os.chdir, "/")],
}


def ways() -> list[str]:
    """Return those that this user may do."""
    return [*WAYS, *(OF_ROOT if os.geteuid() == 0 else ())]


def order(folder: Path, pool: str, way: str) -> None:
    """Leave an order for the next job of that pool; a second one takes the place of the first. Raises OSError."""
    fresh = folder / f".{pool}"
    fresh.write_text(way)
    fresh.rename(folder / pool)


def take(folder: Path, pool: str) -> str:
    """Return the order of that pool, and remove it; "" = there is none."""
    with contextlib.suppress(OSError):
        way = (folder / pool).read_text()
        (folder / pool).unlink()
        return way
    return ""


def spoil(way: str) -> None:
    """Do it to this process. Raises whatever the system says."""
    for step in (WAYS | OF_ROOT)[way]:
        step()
