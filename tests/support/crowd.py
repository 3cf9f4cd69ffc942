"""What several consumers do at once, in processes of their own. Kept apart, so that those import little."""

from __future__ import annotations

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy
from jobpool.message.settlement import Ack
from support.jobs import QUEUE

SOON = ReapPolicy(back_off=0.02)
"""What has crashed comes back while all are still at work on it, not when the others have gone idle."""


def drain(backend: QueueBackend, number: int) -> list[tuple[str, int, bool]]:
    """Lease and ack until nothing is left: id, deliveries and whether the ack was accepted, of each message."""
    seen: list[tuple[str, int, bool]] = []
    while True:
        leases = backend.fetch_many(QUEUE, limit=1 + number % 7, ttl=30.0)
        if not leases:
            return seen
        answers = backend.settle_many([(lease, Ack()) for lease in leases])
        seen += [(lease.id, lease.deliveries, bool(answer)) for lease, answer in zip(leases, answers, strict=True)]


def reap_and_settle(backend: QueueBackend, number: int) -> tuple[int, list[str]]:
    """Half of the time ack late, and reap all the time: how many were reaped here, and the ids acked here."""
    acked: list[str] = []
    reaped = idle = 0
    while idle < 20:
        leases = backend.fetch_many(QUEUE, limit=3, ttl=0.002 if number % 2 else 30.0)
        reaped += len(backend.reap(QUEUE, SOON))
        acked += [lease.id for lease in leases if backend.ack(lease)]
        stats = backend.stats(QUEUE)
        idle = 0 if leases or stats.pending else idle + 1
    return reaped, acked
