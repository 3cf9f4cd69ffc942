"""Leasing: what the function `lease` returns, as leases; and leases as parameters of other functions."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from jobpool.clock import Clock
from jobpool.message.envelope import OVERSIZED
from jobpool.message.lease import JobLease
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.retention import Sweeper
from jobpool_backends.shared import MICRO, micros
from jobpool_backends.sql import number_of

_FETCH = "SELECT * FROM {schema}.lease(%(queue)b, %(limit)b, %(ttl)b, %(call)b, %(holder)b)"

HOLDERS = 1 << 63
_NOBODY = -1


class Fetcher:
    """Leases messages of one database."""

    def __init__(self, database: Database, clock: Clock, sweeper: Sweeper, scheme: str) -> None:
        self._database = database
        self._clock = clock
        self._sweeper = sweeper
        self._scheme = scheme

    def fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        before = self._clock.boot()
        asked = {
            "queue": queue,
            "limit": min(limit, 2**31 - 1),
            "ttl": micros(ttl),
            "call": fetch_id,
            "holder": secrets.randbelow(HOLDERS),
        }
        rows = self._database.run(_FETCH, asked)
        if not rows:
            return []
        self._sweeper.sweep()
        return self._leases(queue, rows, before)

    def _leases(self, queue: str, rows: list[tuple[Any, ...]], before: float) -> list[JobLease]:
        rows.sort()  # by priority and sequence number, which no two have alike
        scheme = self._scheme
        holder = f"{rows[0][9]:016x}"  # they were all taken by one call
        return [
            JobLease(
                ident,
                queue,
                OVERSIZED if body is None else body,
                seq,
                f"{holder}{seq:016x}",
                before + remaining / MICRO,
                scheme,
                attempts,
                crashes,
                deliveries,
                enqueued_at / MICRO,
                begun,
            )
            for _, seq, ident, body, attempts, crashes, deliveries, enqueued_at, begun, _, remaining in rows
        ]


def holder_of(lease: JobLease) -> int:
    """Return the half of the owner token that the table has; one that nobody has for a token that is none of ours."""
    try:
        holder = int(lease.owner_token[:16], 16)
    except ValueError:
        return _NOBODY
    return holder if 0 <= holder < HOLDERS else _NOBODY


def lease_columns(leases: Sequence[JobLease], prefix: str = "") -> dict[str, str]:
    """Return the parameters `queues`, `seqs` and `holders` of functions that take leases."""
    return {
        f"{prefix}queues": _names([lease.queue for lease in leases]),
        f"{prefix}seqs": numbers(map(number_of, leases)),
        f"{prefix}holders": numbers(map(holder_of, leases)),
    }


def numbers(values: Iterable[int]) -> str:
    """Return an array of integers as Postgres reads it: a fifth of what psycopg takes to adapt a list."""
    return f"{{{','.join(map(str, values))}}}"


def _names(values: Sequence[str]) -> str:
    """Return an array of queue names as Postgres reads it; most often all names are the same."""
    if not values:
        return "{}"
    if values.count(values[0]) == len(values):
        return f"{{{','.join([_quoted(values[0])] * len(values))}}}"
    return f"{{{','.join(map(_quoted, values))}}}"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
