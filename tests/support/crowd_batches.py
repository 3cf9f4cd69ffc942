"""Consumers of members of batches, in processes that are killed. Kept apart, so that those import little."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Move, Settlement
from support.jobs import a_job

QUEUES = ("reports", "mails")
TTL = 1.0
"""Seconds: what a killed one held comes back soon."""

FOREVER = ReapPolicy(max_crashes=0, back_off=0.0)
"""A kill is not an end of a job, and no reason to wait."""


def settle_for_ever(opener: Callable[[], QueueBackend], number: int) -> None:
    """Settle some at a time, of any batches: by its payload one fails, moves, or brings one more member."""
    rng = random.Random(number)
    with closing(opener()) as backend:
        while True:
            queue = rng.choice(QUEUES)
            leases = backend.fetch_many(queue, limit=rng.randint(1, 9), ttl=TTL, wait=0.02)
            backend.settle_many([(lease, settlement(lease)) for lease in leases])
            backend.reap(queue, FOREVER)


def settlement(lease: JobLease) -> Settlement:
    batch, kind = lease.envelope.payload
    there = QUEUES[lease.queue == QUEUES[0]]
    if kind == "fail":
        return Abandon("failed")
    if kind == "move" and lease.queue == QUEUES[0]:
        return Move(there)
    if kind == "bring":
        return Ack((a_job((batch, "plain"), identifier=f"{lease.id}+", queue=there, batch=batch),))
    return Ack()
