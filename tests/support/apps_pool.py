"""The app of the pool's process tests: every handler writes what it does to the ledger, and many of them misbehave.

The ledger is the file JOBPOOL_LEDGER; see `jobpool_torture.ledger`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import gc
import hashlib
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobpool
from jobpool_torture.ledger import LEDGER, Line, append

LONG = 600
HELD: list[bytearray] = []
MOMENT = 0.002
VERSION = os.environ.get("POOLTEST_VERSION", "")


def note(ctx: jobpool.JobContext, event: str, **more: Any) -> None:
    """One line to the ledger."""
    told: dict[str, Any] = {"fence": ctx.fence, "attempt": ctx.attempt, "crashes": ctx.crashes}
    line = Line(event, ctx.id, pid=os.getpid(), at=time.monotonic(), wall=time.time(), **told, **more)
    append(os.environ[LEDGER], [line])


def begins_first(ctx: jobpool.JobContext) -> bool:
    """Whether it had not begun before. The fence does not tell: on a slow machine a delivery is given back unbegun."""
    with contextlib.suppress(FileExistsError):
        Path(os.environ[LEDGER]).with_name(f"begun {ctx.id}").touch(exist_ok=False)
        return True
    return False


# --- handlers that behave ---------------------------------------------------------------------------


@jobpool.handler
def noop(ctx: jobpool.JobContext) -> None:
    pass


@jobpool.handler
def work(ctx: jobpool.JobContext, seconds: float = 0.0, tag: str = "") -> None:
    """Sleeps, from a start line to an end line."""
    note(ctx, "start", tag=tag)
    if seconds:
        time.sleep(seconds)
    note(ctx, "end", tag=tag)


@jobpool.handler
def again(ctx: jobpool.JobContext, first: float, later: float, until: str = "", then: str = "") -> None:
    """Sleeps so long when it first begins, once the file `until` is there, and so long in the next, after `then`."""
    note(ctx, "start")
    is_first = begins_first(ctx)
    file = until if is_first else then
    while file and not os.path.exists(file):
        time.sleep(0.01)
    time.sleep(first if is_first else later)
    note(ctx, "end")


@jobpool.handler
def hold_gil(ctx: jobpool.JobContext, seconds: float) -> None:
    """One C call that holds the interpreter lock so long: no thread of the process runs a line of Python meanwhile."""
    note(ctx, "start")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    note(ctx, "end")


@dataclass
class Order:
    customer: int
    month: str = "2026-06"


@jobpool.handler
def typed(ctx: jobpool.JobContext, order: Order) -> None:
    note(ctx, "end", tag=f"{order.customer} {order.month}")


@jobpool.handler
async def asleep(ctx: jobpool.JobContext, seconds: float) -> None:
    note(ctx, "start")
    await asyncio.sleep(seconds)
    note(ctx, "end")


@jobpool.handler
def follow_up(ctx: jobpool.JobContext, fail: bool = False) -> None:
    ident = ctx.enqueue("work", {"tag": "follow-up"})
    note(ctx, "follow", tag=ident)
    note(ctx, "end", tag=ident)
    if fail:
        raise ValueError("no follow-up, please")


@jobpool.handler
def produce(ctx: jobpool.JobContext) -> None:
    """Through the process's own producer, as code does that knows nothing of `ctx`."""
    ids = [jobpool.Jobs().define("work", {"tag": "produced"}).dispatch(), work.enqueue(tag="produced")]
    note(ctx, "end", tag=",".join(ids))


@jobpool.handler
def fan_out(ctx: jobpool.JobContext) -> None:
    """Fill a batch: killed in the midst of it in the first delivery, failing there in the second."""
    jobs = jobpool.Jobs()
    done = tell.define(tag="fanned out")
    with jobs.batch(on_done=done, identifier=f"{ctx.id}:batch") as batch:
        for n in range(4):
            if n == 2 and ctx.fence == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if n == 3 and ctx.fence == 2:
                raise ConnectionError("the list of customers is away")
            batch.add(work.define(tag="member").identifier(f"{ctx.id}:{n}"))
    note(ctx, "end", tag=str(batch.status().total))


@jobpool.handler
def tell(ctx: jobpool.JobContext, tag: str, batch: dict[str, Any] | None = None) -> None:
    assert batch is not None
    note(ctx, "end", tag=f"{tag}: {batch['succeeded']} of {batch['total']}")


@jobpool.handler
def ask_for(ctx: jobpool.JobContext, what: str) -> None:
    """The first time, `what`; then success."""
    note(ctx, "start")
    if ctx.fence == 1:
        raise {
            "retry": jobpool.Retry(after=0.05, reason="not yet"),
            "snooze": jobpool.Snooze(after=0.05),
            "unrecoverable": jobpool.Unrecoverable("no such customer"),
        }[what]
    note(ctx, "end")


@jobpool.handler
def fail(ctx: jobpool.JobContext, times: int = 1) -> None:
    """Fails its first `times` attempts."""
    note(ctx, "start")
    if ctx.attempt <= times:
        note(ctx, "fail")
        raise ValueError("no such customer")
    note(ctx, "end")


@jobpool.handler
def tell_version(ctx: jobpool.JobContext) -> None:
    note(ctx, "end", tag=VERSION)


# --- handlers that die ------------------------------------------------------------------------------


def _leave_the_rest_to_a_fork() -> None:
    """The child ends; its fork goes on, as if it were the child, and returns."""
    if os.fork():
        os._exit(0)


DEATHS: dict[str, Callable[[], object]] = {
    "exit 0": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "exec that stays": lambda: os.execv("/bin/sleep", ["sleep", str(LONG)]),
    "abort": os.abort,
    "close all": lambda: os.closerange(0, 4096),
    "fork": _leave_the_rest_to_a_fork,
}


@jobpool.handler
def die(ctx: jobpool.JobContext, how: str, times: int = 1) -> None:
    """Dies in its first `times` deliveries: by a signal, or as `DEATHS` says."""
    note(ctx, "start")
    if ctx.fence <= times:
        if how.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[how])
            time.sleep(LONG)
        DEATHS[how]()
    else:
        note(ctx, "end")


@jobpool.handler
def leave_by_sys_exit(ctx: jobpool.JobContext) -> None:
    note(ctx, "start")
    sys.exit(0)


@jobpool.handler
def come_back_twice(ctx: jobpool.JobContext) -> None:
    """A fork whose two sides return: the new one first, which is the harder case; the other says how that one ended."""
    note(ctx, "start")
    tag = ""
    if fork := os.fork():
        _, status = os.waitpid(fork, 0)
        tag = f"the fork exited with {os.waitstatus_to_exitcode(status)}"
    note(ctx, "end", tag=tag)


# --- handlers that hang -----------------------------------------------------------------------------


def hang_in_sum() -> None:
    sum(range(10**11))


def hang_in_deque() -> None:
    collections.deque(itertools.repeat(0), 0)


def hang_in_pbkdf2() -> None:
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10**9)


def hang_in_zlib() -> None:
    zlib.compress(random.Random(0).randbytes(1 << 20) * 600, 9)


def hang_in_sqlite() -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"
    sqlite3.connect(":memory:").execute(endless).fetchone()


def hang_in_sleep() -> None:
    time.sleep(LONG)


def hang_in_lock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def hang_in_read() -> None:
    os.read(os.pipe()[0], 1)


def hang_in_subprocess() -> None:
    subprocess.run(["sleep", str(LONG)], check=False)


def swallow_exception() -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def swallow_everything() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def ignore_the_alarm() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    time.sleep(LONG)


def replace_the_alarm() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    while True:
        time.sleep(0.01)


def mask_the_alarm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    while True:
        time.sleep(0.01)


def clear_the_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(LONG)


class HangsWhenDeleted:
    def __del__(self) -> None:
        time.sleep(LONG)


def hang_in_del() -> None:
    doomed = HangsWhenDeleted()
    del doomed
    while True:
        time.sleep(0.01)


def hang_in_gc() -> None:
    gc.callbacks.append(lambda *_: time.sleep(LONG))
    gc.collect()
    while True:
        time.sleep(0.01)


def hang_in_weakref() -> None:
    doomed = set[int]()
    kept = weakref.ref(doomed, lambda _: time.sleep(LONG))
    del doomed
    while kept:
        time.sleep(0.01)


def hang_in_ctypes() -> None:
    ctypes.CFUNCTYPE(None)(lambda: time.sleep(LONG))()
    while True:
        time.sleep(0.01)


def ignore_the_alarm_in_c() -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(int(signal.SIGALRM), int(signal.SIG_IGN))
    time.sleep(LONG)


HANGS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        *(hang_in_sum, hang_in_deque, hang_in_pbkdf2, hang_in_zlib, hang_in_sqlite, hang_in_sleep, hang_in_lock),
        *(hang_in_read, hang_in_subprocess, hang_in_del, swallow_exception, swallow_everything),
        *(hang_in_gc, hang_in_weakref, hang_in_ctypes),
        *(ignore_the_alarm, ignore_the_alarm_in_c, replace_the_alarm, mask_the_alarm, clear_the_alarm),
    )
}
IN_C = ("hang_in_sum", "hang_in_deque", "hang_in_pbkdf2", "hang_in_zlib", "hang_in_sqlite")
"""What no Python signal handler interrupts."""


@jobpool.handler
def hang(ctx: jobpool.JobContext, how: str) -> None:
    note(ctx, "start")
    HANGS[how]()
    note(ctx, "end")


# --- handlers that leave something behind, or flood ---------------------------------------------------


@jobpool.handler
def leave_process(ctx: jobpool.JobContext, how: str, then: str = "", times: int = 1) -> None:
    """Leaves a process behind and notes its pid; then, in its first `times` deliveries, it may die itself."""
    reading, writing = os.pipe()
    if how == "double fork":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                os.write(writing, str(os.getpid()).encode())
                os.execv("/bin/sleep", ["sleep", str(LONG)])
            os._exit(0)
        os.wait()
        pid = int(os.read(reading, 20))
    else:
        pid = subprocess.Popen(["sleep", str(LONG)], start_new_session=how == "new session").pid
    note(ctx, "left", tag=str(pid))
    if then and ctx.fence <= times:
        os.kill(os.getpid(), signal.Signals[then])
        time.sleep(LONG)
    note(ctx, "end")


@jobpool.handler
def leave_thread(ctx: jobpool.JobContext) -> None:
    threading.Thread(target=time.sleep, args=(LONG,)).start()
    note(ctx, "end")


def rubbish_to_all() -> None:
    """To every descriptor that takes it."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            os.set_blocking(fd, False)
            os.write(fd, b"rubbish " * 20)


@jobpool.handler
def write_rubbish(ctx: jobpool.JobContext) -> None:
    note(ctx, "start")
    if ctx.fence == 1:
        rubbish_to_all()
    note(ctx, "end")


@jobpool.handler
def return_much(ctx: jobpool.JobContext, mebibytes: int) -> str:
    note(ctx, "start")
    note(ctx, "end")
    return "x" * (mebibytes << 20)


@jobpool.handler
def grow(ctx: jobpool.JobContext, mebibytes: int, then: float = LONG) -> None:
    """Takes that much memory, touches it, and keeps it for as long as it is told."""
    note(ctx, "start")
    held = bytearray(mebibytes << 20)
    for page in range(0, len(held), 4096):
        held[page] = 1
    time.sleep(then)
    note(ctx, "end")


@jobpool.handler
def leak(ctx: jobpool.JobContext, mebibytes: int) -> None:
    """Keeps memory for the life of the child."""
    HELD.append(bytearray(b"x" * (mebibytes << 20)))
    note(ctx, "end")
