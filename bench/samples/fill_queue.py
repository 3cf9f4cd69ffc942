"""Fill a queue with messages in one state, through the backend as any producer and worker would."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.programs import answer
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon

QUEUE = "bench"
BATCH = 1000

CALL_TIMEOUT_S = 30.0
"""Seconds for each call: what is measured is how long it takes, so it may."""


def run(url: str, state: str, count: int) -> dict[str, Any]:
    """Put `count` messages there. `state`: `waiting`, `delayed` or `dead`."""
    backend = open_backend(url, timeout=CALL_TIMEOUT_S)
    try:
        for begin in range(0, count, BATCH):
            _STATES[state](backend, min(BATCH, count - begin))
    finally:
        backend.close()
    return {}


def _waiting(backend: QueueBackend, count: int) -> None:
    backend.enqueue_many([JobDefinition("noop", {}, queue=QUEUE)] * count)


def _delayed(backend: QueueBackend, count: int) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    backend.enqueue_many([JobDefinition("noop", {}, queue=QUEUE, scheduled_at=tomorrow)] * count)


def _dead(backend: QueueBackend, count: int) -> None:
    _waiting(backend, count)
    while leases := backend.fetch_many(QUEUE, limit=count):
        backend.settle_many([(lease, Abandon("bench")) for lease in leases])


_STATES: dict[str, Callable[[QueueBackend, int], None]] = {"waiting": _waiting, "delayed": _delayed, "dead": _dead}


if __name__ == "__main__":
    answer(run)
