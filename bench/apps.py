"""The handlers that are measured. Times are CLOCK_MONOTONIC, which all processes of a machine share."""

from __future__ import annotations

import os
import signal
import time

import jobpool
from bench import hanging_jobs, mixed_jobs
from bench.cpu_work import burn as burn_cpu
from bench.job_counters import count
from bench.note_file import note


@jobpool.handler("noop")
def noop(_ctx: jobpool.JobContext) -> None:
    """Do nothing."""


@jobpool.handler("counted")
def counted(_ctx: jobpool.JobContext) -> None:
    """Do nothing, as the peers do it."""
    count()


@jobpool.handler("counted nap")
def counted_nap(_ctx: jobpool.JobContext, seconds: float) -> None:
    """Sleep, and count."""
    time.sleep(seconds)
    count()


@jobpool.handler("burn")
def burn(_ctx: jobpool.JobContext, loops: int) -> None:
    """Do fixed CPU work."""
    burn_cpu(loops)


@jobpool.handler("stamp")
def stamp(ctx: jobpool.JobContext) -> None:
    """Note when it began."""
    now = time.monotonic()
    note(ctx.payload["path"], ctx.payload["number"], now)


@jobpool.handler("nap")
def nap(_ctx: jobpool.JobContext, path: str, seconds: float) -> None:
    """Sleep, and note when that began."""
    mixed_jobs.nap(path, seconds)


@jobpool.handler("span")
def span(_ctx: jobpool.JobContext, path: str, queue: str, seconds: float) -> None:
    """Note from when to when it ran."""
    begun = time.monotonic()
    time.sleep(seconds)
    note(path, queue, begun, time.monotonic())


@jobpool.handler("hang", timeout=hanging_jobs.TIMEOUT, max_retries=0)
def hang(_ctx: jobpool.JobContext, path: str) -> None:
    """Make one call into C that takes hours and ignores signals."""
    hanging_jobs.hang(path)


@jobpool.handler("crash")
def crash(ctx: jobpool.JobContext, path: str) -> None:
    """Die by a signal at the first delivery; note the time at each."""
    now = time.monotonic()
    if ctx.fence > 1:
        note(path, "again", ctx.id, os.getpid(), now)
        return
    note(path, "crash", ctx.id, os.getpid(), time.monotonic())
    os.kill(os.getpid(), signal.SIGSEGV)
