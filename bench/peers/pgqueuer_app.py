"""PgQueuer over Postgres, with asyncpg and uvloop, which are the quickest of what it can use. It does not fence."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import os
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from bench.job_counters import count
from bench.note_file import note

T = TypeVar("T")


async def work(batch: int) -> None:
    """Serve, `batch` jobs in one fetch, as `pgq run` does, which does not start with the current typer."""
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["BENCH_URL"])))

    @pgq.entrypoint("noop")
    async def noop(_job: Job) -> None:
        count()

    @pgq.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        now = time.monotonic()
        path, number = (job.payload or b"").decode().split("\0")
        note(path, number, now)

    await pgq.run(batch_size=batch)


_loop = uvloop.new_event_loop()
_queries: Queries


def _do(what: Coroutine[Any, Any, T]) -> T:
    found: T = _loop.run_until_complete(what)
    return found


def open_(fresh: bool) -> None:
    """Connect, and make its tables in a fresh database, with the autovacuum settings that it recommends."""
    global _queries
    _queries = Queries(AsyncpgDriver(_do(asyncpg.connect(os.environ["BENCH_URL"]))))
    if fresh:
        _do(_queries.install())
        _do(_queries.optimize_autovacuum())


def one() -> None:
    """Enqueue a job."""
    _do(_queries.enqueue("noop", None))


def many(jobs: int) -> None:
    """Enqueue several in one statement."""
    _do(_queries.enqueue(["noop"] * jobs, [None] * jobs, [0] * jobs))


def stamped(path: str, number: int) -> None:
    """Enqueue a job that notes when it began."""
    _do(_queries.enqueue("stamp", f"{path}\0{number}".encode()))


def close() -> None:
    """Give back connections."""
    _loop.close()


if __name__ == "__main__":
    uvloop.run(work(int(sys.argv[1])))
