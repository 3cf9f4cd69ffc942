"""The app of the tests of spoilt processes: a handler that does to its process what outlasts it, and innocent ones."""

# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import ctypes
import decimal
import faulthandler
import gc
import importlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jobpool

SOON = 0.1
"""Seconds after which a timer that was left armed strikes."""

NEEDED = 4 << 20
"""Bytes that an innocent job takes."""

ROOT_ONLY = Path("for-root")
"""In the pool's folder, where only root may read it."""


def address_space() -> int:
    """Bytes that this process has, and hardly more: a limit that leaves no room for an innocent job."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize() + NEEDED // 2


def lower(limit: int, value: int) -> None:
    resource.setrlimit(limit, (value, value))


def lower_through_c() -> None:
    """No module of Python's knows of it; long enough that it is looked for."""
    value = (ctypes.c_ulong * 2)(4096, 4096)
    assert ctypes.CDLL(None).setrlimit(1, value) == 0
    time.sleep(0.02)


def strike(_number: int, _frame: object) -> None:
    raise RuntimeError("a timer that another job has left armed")


def leave_timer(timer: int, number: signal.Signals, *, handled: bool) -> None:
    if handled:
        signal.signal(number, strike)
    signal.setitimer(timer, SOON, SOON)


def settle_in_jail() -> None:
    os.chroot(tempfile.mkdtemp())


def follow(frame: object, event: str, argument: object) -> None:
    if event == "call" and "innocent" in repr(frame):
        raise RuntimeError("a trace function that another job has left")


TIMERS: dict[str, Callable[[], object]] = {
    "virtual timer": lambda: leave_timer(signal.ITIMER_VIRTUAL, signal.SIGVTALRM, handled=True),
    "virtual timer, unhandled": lambda: leave_timer(signal.ITIMER_VIRTUAL, signal.SIGVTALRM, handled=False),
    "profiling timer": lambda: leave_timer(signal.ITIMER_PROF, signal.SIGPROF, handled=True),
    "alarm": lambda: leave_timer(signal.ITIMER_REAL, signal.SIGALRM, handled=True),
    "watchdog": lambda: faulthandler.dump_traceback_later(SOON, exit=True),
}
WAYS: dict[str, Callable[[], object]] = {
    **TIMERS,
    "size of files": lambda: lower(resource.RLIMIT_FSIZE, 4096),
    "address space": lambda: lower(resource.RLIMIT_AS, address_space()),
    "open files": lambda: lower(resource.RLIMIT_NOFILE, 20),
    "limit set by C code": lower_through_c,
    "recursion": lambda: sys.setrecursionlimit(120),
    "path": sys.path.clear,
    "environment": os.environ.clear,
    "one variable": lambda: os.environ.update(HOME="/nowhere"),
    "trace": lambda: sys.settrace(follow),
    "profile": lambda: sys.setprofile(follow),
    "network timeout": lambda: socket.setdefaulttimeout(0.001),
    "garbage": gc.disable,
    "precision": lambda: setattr(decimal.getcontext(), "prec", 3),
    "warnings": lambda: warnings.simplefilter("error"),
    "folder": lambda: os.chdir("/"),
    "pipe of asyncio": lambda: os.set_blocking(1, False),
}
OF_ROOT: dict[str, Callable[[], object]] = {
    "user": lambda: os.setuid(65534),
    "effective user": lambda: os.seteuid(65534),
    "root": settle_in_jail,
}


@jobpool.handler
def spoil(ctx: jobpool.JobContext, how: str) -> None:
    (WAYS | OF_ROOT)[how]()


def descend(depth: int) -> int:
    return descend(depth - 1) if depth else 0


@jobpool.handler
def innocent(ctx: jobpool.JobContext) -> None:
    """Needs a bit of everything, and fails if it is not there."""
    until = time.process_time() + 0.001
    bytearray(NEEDED)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1 << 16))
    for fd in [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]:
        os.close(fd)
    ROOT_ONLY.read_text()
    subprocess.run(["head", "-c", str(1 << 18), "/dev/zero"], check=True)
    sys.modules.pop("colorsys", None)
    importlib.import_module("colorsys")
    descend(300)
    assert os.environ["HOME"] == os.environ["POOLTEST_HOME"]
    assert socket.getdefaulttimeout() is None
    assert gc.isenabled()
    assert str(decimal.Decimal(1) / 3) == "0.3333333333333333333333333333"
    warnings.warn("an old way", DeprecationWarning, stacklevel=1)
    while time.process_time() < until:
        pass
