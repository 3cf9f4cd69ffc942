"""Celery over Redis.

Quick by its own guide to optimizing: no results, no events, no rate limits. Its default prefetch of 4 a process was
the quickest of 1, 4, 64 and 256. `BENCH_ACKS_LATE` keeps a task in the broker until it has ended, which is what jobpool
always does; by default Celery forgets it before it runs.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import os
import time

from celery import Celery

from bench import app_data
from bench.hanging_jobs import TIMEOUT, hang
from bench.job_counters import count
from bench.note_file import note

TABLE = app_data.made_if_asked()

app = Celery("bench", broker=os.environ["BENCH_URL"])
app.conf.update(
    task_acks_late=os.environ.get("BENCH_ACKS_LATE") == "1",
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    task_send_sent_event=False,
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def noop() -> None:
    """Do nothing."""
    count()


@app.task
def stamp(path: str, number: int) -> None:
    """Note when it began."""
    now = time.monotonic()
    note(path, number, now)


@app.task(time_limit=TIMEOUT)
def hung(path: str) -> None:
    """Hang in C code. The hard time limit kills its process; the soft one would not end it."""
    hang(path)


def open_(fresh: bool) -> None:
    """Do nothing: Celery connects and makes what it needs as it goes."""


def one() -> None:
    """Enqueue a job, as its guide does."""
    noop.delay()


def many(jobs: int) -> None:
    """Enqueue one by one: there is no call for several. One connection for all is as quick as it gets."""
    with app.producer_or_acquire() as producer:
        for _ in range(jobs):
            noop.apply_async(producer=producer)


def stamped(path: str, number: int) -> None:
    """Enqueue a job that notes when it began."""
    stamp.delay(path, number)


def hanging(path: str) -> None:
    """Enqueue a job that hangs."""
    hung.delay(path)


def close() -> None:
    """Give back connections."""
    app.close()
