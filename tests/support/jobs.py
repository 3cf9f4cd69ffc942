"""Small builders of definitions, and of leases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease

QUEUE = "reports"


def a_job(payload: Any = None, **fields: Any) -> JobDefinition:
    """A job for the queue `reports`, unless `fields` say otherwise."""
    return JobDefinition(
        **{"handler": "report", "queue": QUEUE, "payload": {} if payload is None else payload, **fields}
    )


def numbered(count: int, **fields: Any) -> list[JobDefinition]:
    """Jobs whose payload is 0, 1, 2, …"""
    return [a_job(number, **fields) for number in range(count)]


def unique(key: str = "order-17", **fields: Any) -> JobDefinition:
    """One of which there is but one."""
    return a_job(unique=True, idempotency_key=key, **fields)


def at(unix_time: float) -> datetime:
    """A Unix time as `scheduled_at` takes it, to the microsecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(unix_time * 1e6))


def new_lease(
    backend: QueueBackend, payload: Any = None, *, queue: str = QUEUE, ttl: float = 30.0, **fields: Any
) -> JobLease:
    """A new job, leased; no other waits before it."""
    ident = backend.enqueue(a_job(payload, queue=queue, **fields))
    [lease] = backend.fetch_many(queue, limit=1, ttl=ttl)
    assert lease.id == ident
    return lease


def new_leases(backend: QueueBackend, count: int, *, ttl: float = 300.0, **fields: Any) -> list[JobLease]:
    """So many new jobs, leased; no other waits before them."""
    backend.enqueue_many(numbered(count, **fields))
    leases = backend.fetch_many(QUEUE, limit=count, ttl=ttl)
    assert len(leases) == count
    return leases
