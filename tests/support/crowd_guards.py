"""What several consumers do at once under guards, in processes of their own. Kept apart, so that those import little.

Times are seconds on the clock that all processes of the machine share.
"""

from __future__ import annotations

import secrets
import time

from jobpool.broker.backend import QueueBackend
from jobpool.message.guards import Begin, Guards, Hold, Rate
from jobpool.message.lease import JobLease
from support.jobs import QUEUE, a_job

Span = tuple[float, float]

PLACES = Guards(holds=(Hold("queue", 3),))
RATE = Rate("queue", 4, 0.4)
WORK = 0.003
"""Seconds that a place is used for."""


def hold_places(backend: QueueBackend, number: int) -> list[Span]:
    """Lease, take one of three places, use it, ack; until nothing is left: from when to when each was used."""
    del number
    spans: list[Span] = []
    while lease := _next(backend):
        if not _begin(backend, lease, PLACES):
            backend.release(lease, delay=0.002)
            continue
        start = time.monotonic()
        time.sleep(WORK)
        spans.append((start, time.monotonic()))
        assert backend.ack(lease.guarded(PLACES))
    return spans


def run_keys_once(backend: QueueBackend, number: int) -> list[str]:
    """Run what its key allows, and give half of it up at first: the keys that were acked here after a run."""
    ran: list[str] = []
    while lease := _next(backend):
        guards = Guards(key=lease.envelope.payload)
        [answer] = backend.keys.begin_many([(lease, guards)])
        if answer.answer is Begin.HELD:
            backend.release(lease, delay=0.002)
        elif answer.answer is Begin.DONE:
            assert backend.ack(lease)
        elif number % 2 and lease.attempts == 0:
            backend.nack(lease.guarded(guards))
        else:
            time.sleep(WORK)
            assert backend.ack(lease.guarded(guards))
            ran.append(lease.envelope.payload)
    return ran


def enqueue_the_same(backend: QueueBackend, number: int) -> list[str]:
    """Enqueue one unique job again and again: the ids that came back."""
    job = a_job(number, unique=True, idempotency_key="the-only-one")
    return [backend.enqueue(job) for _ in range(25)]


def start_within_the_rate(backend: QueueBackend, number: int) -> list[Span]:
    """Start what the rate allows, for a second and a half; half of the crowd without messages.

    Each start was counted between the two times of its pair.
    """
    spans: list[Span] = []
    give_up = time.monotonic() + 1.5
    while time.monotonic() < give_up:
        before = time.monotonic()
        if _start(backend, number):
            spans.append((before, time.monotonic()))
        else:
            time.sleep(0.002)
    return spans


def _start(backend: QueueBackend, number: int) -> bool:
    if number % 2:
        return backend.keys.take(QUEUE, RATE, secrets.token_hex(8)) == 0.0
    [lease] = backend.fetch_many(QUEUE, limit=1)
    guards = Guards(rates=(RATE,))
    started = _begin(backend, lease, guards)
    backend.release(lease.guarded(guards) if started else lease)
    return started


def _next(backend: QueueBackend) -> JobLease | None:
    """The next message, waited for while there are any."""
    while backend.stats(QUEUE).pending:
        lease = backend.fetch(QUEUE, wait=0.05)
        if lease is not None:
            return lease
    return None


def _begin(backend: QueueBackend, lease: JobLease, guards: Guards) -> bool:
    [answer] = backend.keys.begin_many([(lease, guards)])
    return bool(answer)
