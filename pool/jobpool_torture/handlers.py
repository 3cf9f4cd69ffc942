"""The app of the tortured pools: each handler writes to the ledger what it does, and many of them misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jobpool
from jobpool.message.definition import JobDefinition
from jobpool_torture import spoiling
from jobpool_torture.ledger import LASTS, LEDGER, Line, append

COUNTS = ("total", "succeeded", "failed", "cancelled")  # of a batch, in the order in which its callback writes them
PLAIN_DEPTH = 100
PLAIN_BYTES = 1 << 20
"""Calls and bytes that a plain job needs."""

FOREVER_S = 3600 + round(float(os.environ.get(LASTS, "0")))
"""Seconds: longer than a run, at whose end processes left behind are looked for."""


def note(ctx: jobpool.JobContext, event: str, tag: str = "") -> None:
    told: dict[str, Any] = {"attempt": ctx.attempt, "crashes": ctx.crashes, "pid": os.getpid()}
    line = Line(event, ctx.id, fence=ctx.fence, at=time.monotonic(), wall=time.time(), tag=tag, **told)
    append(os.environ[LEDGER], [line])


def receipt(ctx: jobpool.JobContext) -> dict[str, Any]:
    """Write `end`, and return the result by which this run is told from every other."""
    note(ctx, "end")
    return {"job": ctx.id, "fence": ctx.fence, "attempt": ctx.attempt}


@jobpool.handler("torture.work")
def work(ctx: jobpool.JobContext, seconds: float) -> dict[str, Any]:
    """Do things that many jobs do and a process must allow after others; then sleep."""
    note(ctx, "start")
    importlib.util.find_spec("this")
    _go_down(PLAIN_DEPTH)
    bytearray(PLAIN_BYTES)
    with open(os.devnull, "rb"):
        time.sleep(seconds)
    result = receipt(ctx)
    _obey(ctx)
    return result


def _go_down(calls: int) -> None:
    if calls:
        _go_down(calls - 1)


def _obey(ctx: jobpool.JobContext) -> None:
    """Take the order to spoil this process, if there is one. Damage that the system forbids is skipped."""
    pool = os.path.basename(os.environ["JOBPOOL_RUNTIME_DIR"])
    if way := spoiling.take(Path(os.environ[spoiling.ORDERS_FOLDER]), pool):
        note(ctx, "spoilt", way)
        with contextlib.suppress(OSError, ValueError):
            spoiling.spoil(way)


@jobpool.handler("torture.spin")
def spin(ctx: jobpool.JobContext, seconds: float) -> None:
    """Burn CPU for `seconds`."""
    note(ctx, "start")
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))
    note(ctx, "end")


@jobpool.handler("torture.asleep")
async def asleep(ctx: jobpool.JobContext, seconds: float) -> None:
    """Sleep in an event loop."""
    note(ctx, "start")
    await asyncio.sleep(seconds)
    note(ctx, "end")


@jobpool.handler("torture.weigh")
def weigh(ctx: jobpool.JobContext, filling: str, size: int) -> int:
    """Take a big payload, and fail if any of it is missing."""
    note(ctx, "start")
    if len(filling) != size:
        note(ctx, "fail")
        raise ValueError(f"{len(filling)} bytes of payload have come, not {size}")
    note(ctx, "end")
    return len(filling)


@jobpool.handler("torture.shout")
def shout(ctx: jobpool.JobContext, kilobytes: int) -> None:
    """Print that much, half of it to stderr."""
    note(ctx, "start")
    line = "x" * 1023
    for number in range(kilobytes):
        print(line, file=sys.stderr if number % 2 else sys.stdout)
    note(ctx, "end")


@jobpool.handler("torture.follow")
def follow(ctx: jobpool.JobContext, jobs: int) -> None:
    """Enqueue `jobs` jobs with its ack, as members of its batch if it has one."""
    note(ctx, "start")
    add = ctx.batch.add if ctx.batch else ctx.enqueue
    for _ in range(jobs):
        note(ctx, "follow", add(JobDefinition("torture.work", {"seconds": 0.01}, queue=ctx.queue)))
    note(ctx, "end")


@jobpool.handler("torture.tally")
def tally(ctx: jobpool.JobContext, batch: dict[str, Any]) -> None:
    """Write the counts of the batch whose callback it is."""
    note(ctx, "start")
    note(ctx, "told", " ".join(str(batch[name]) for name in COUNTS))
    note(ctx, "end")


@jobpool.handler("torture.fail")
def fail(ctx: jobpool.JobContext, times: int) -> dict[str, Any]:
    """Fail in its first `times` attempts."""
    note(ctx, "start")
    if ctx.attempt <= times:
        note(ctx, "fail")
        _obey(ctx)
        raise ValueError("no such customer")
    return receipt(ctx)


@jobpool.handler("torture.ask")
def ask(ctx: jobpool.JobContext, what: str) -> None:
    """Ask once to be run later (`retry`: as a failed attempt; `snooze`), or never again (`unrecoverable`)."""
    note(ctx, "start")
    if what == "snooze" and ctx.fence == 1:
        raise jobpool.Snooze(after=0.1)
    if what == "unrecoverable" or (what == "retry" and ctx.attempt == 1):
        note(ctx, "fail")
        raise jobpool.Unrecoverable("no such customer") if what == "unrecoverable" else jobpool.Retry(after=0.1)
    note(ctx, "end")


@jobpool.handler("torture.crash")
def crash(ctx: jobpool.JobContext, how: str, times: int) -> dict[str, Any]:
    """Die, by a signal or as if nothing was wrong, until it is told of `times` crashes."""
    note(ctx, "start")
    if ctx.crashes < times:
        if how != "exit":
            os.kill(os.getpid(), signal.Signals[how])
            time.sleep(FOREVER_S)
        os._exit(0)
    return receipt(ctx)


@jobpool.handler("torture.hang")
def hang(ctx: jobpool.JobContext, how: str) -> None:
    """Run forever."""
    note(ctx, "start")
    if how == "in C":
        sum(range(10**11))
    if how == "sleep":
        time.sleep(FOREVER_S)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


@jobpool.handler("torture.leave")
def leave(ctx: jobpool.JobContext, how: str) -> None:
    """Leave a process behind, and succeed."""
    note(ctx, "start")
    words = ["sleep", str(FOREVER_S)]
    if how == "double fork":  # in a session of its own, whose first process has ended
        shell = ["sh", "-c", '"$@" > /dev/null & echo $!', "sh", *words]
        pid = int(subprocess.check_output(shell, start_new_session=True))
    else:
        pid = subprocess.Popen(words, start_new_session=how == "new session").pid
    note(ctx, "left", str(pid))
    note(ctx, "end")
