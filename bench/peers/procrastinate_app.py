"""Procrastinate over Postgres. Finished jobs are deleted, as jobpool's are: its default keeps them."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import os
import time

import procrastinate

from bench.job_counters import count
from bench.note_file import note

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_URL"]),
    worker_defaults={"delete_jobs": "successful"},
)


@app.task(name="noop")
async def noop() -> None:
    """Do nothing. A coroutine, because a plain function would take a thread as well."""
    count()


@app.task(name="stamp")
async def stamp(path: str, number: int) -> None:
    """Note when it began."""
    now = time.monotonic()
    note(path, number, now)


def open_(fresh: bool) -> None:
    """Connect, and make its tables in a fresh database."""
    app.open()
    if fresh:
        app.schema_manager.apply_schema()


def one() -> None:
    """Enqueue a job, as its guide does."""
    noop.defer()


def many(jobs: int) -> None:
    """Enqueue several in one statement."""
    noop.batch_defer(*[{}] * jobs)


def stamped(path: str, number: int) -> None:
    """Enqueue a job that notes when it began."""
    stamp.defer(path=path, number=number)


def close() -> None:
    """Give back connections."""
    app.close()
