"""Dramatiq over Redis, with its default middleware. Its messages stay in Redis until they are acknowledged."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench import app_data
from bench.hanging_jobs import TIMEOUT, hang
from bench.job_counters import count
from bench.note_file import note

TABLE = app_data.made_if_asked()

broker = RedisBroker(url=os.environ["BENCH_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor
def noop() -> None:
    """Do nothing."""
    count()


@dramatiq.actor
def stamp(path: str, number: int) -> None:
    """Note when it began."""
    now = time.monotonic()
    note(path, number, now)


@dramatiq.actor(time_limit=TIMEOUT * 1000, max_retries=0)
def hung(path: str) -> None:
    """Hang in C code. The time limit raises an exception in its thread."""
    hang(path)


def open_(fresh: bool) -> None:
    """Do nothing: Dramatiq connects and makes what it needs as it goes."""


def one() -> None:
    """Enqueue a job, as its guide does."""
    noop.send()


def many(jobs: int) -> None:
    """Enqueue one by one: there is no call for several."""
    for _ in range(jobs):
        noop.send()


def stamped(path: str, number: int) -> None:
    """Enqueue a job that notes when it began."""
    stamp.send(path, number)


def hanging(path: str) -> None:
    """Enqueue a job that hangs."""
    hung.send(path)


def close() -> None:
    """Give back connections."""
    broker.close()
