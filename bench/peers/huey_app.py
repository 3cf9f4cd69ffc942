"""Huey over Redis, without results. It takes a task out of Redis before it runs it: a crash loses that one."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import os
import time

from huey import RedisHuey

from bench import app_data
from bench.hanging_jobs import TIMEOUT, hang
from bench.job_counters import count
from bench.note_file import note

TABLE = app_data.made_if_asked()

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], results=False)


@huey.task()
def noop() -> None:
    """Do nothing."""
    count()


@huey.task()
def stamp(path: str, number: int) -> None:
    """Note when it began."""
    now = time.monotonic()
    note(path, number, now)


@huey.task(timeout=TIMEOUT)
def hung(path: str) -> None:
    """Hang in C code. The timeout raises an exception in its process."""
    hang(path)


def open_(fresh: bool) -> None:
    """Do nothing: Huey connects and makes what it needs as it goes."""


def one() -> None:
    """Enqueue a job, as its guide does."""
    noop()


def many(jobs: int) -> None:
    """Enqueue one by one: there is no call for several."""
    for _ in range(jobs):
        noop()


def stamped(path: str, number: int) -> None:
    """Enqueue a job that notes when it began."""
    stamp(path, number)


def hanging(path: str) -> None:
    """Enqueue a job that hangs."""
    hung(path)


def close() -> None:
    """Give back connections."""
    huey.storage.pool.disconnect()
