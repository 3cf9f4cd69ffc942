"""Small builders of definitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobpool.message.definition import JobDefinition

QUEUE = "reports"


def a_job(payload: Any = None, **fields: Any) -> JobDefinition:
    """A job for the queue `reports`, unless `fields` say otherwise."""
    return JobDefinition(
        **{"handler": "report", "queue": QUEUE, "payload": {} if payload is None else payload, **fields}
    )


def numbered(count: int, **fields: Any) -> list[JobDefinition]:
    """Jobs whose payload is 0, 1, 2, …"""
    return [a_job(number, **fields) for number in range(count)]


def at(unix_time: float) -> datetime:
    """A Unix time as `scheduled_at` takes it, to the microsecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(unix_time * 1e6))
