"""Claims where more ends, or falls due, at once than one call may tidy up."""

from __future__ import annotations

import pytest
from support.claims import claim, ids, post
from support.harness import Harness
from support.jobs import QUEUE

from jobpool.broker.backend import QueueBackend

pytestmark = pytest.mark.needs("leases", "claims")

MANY = 1_040


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def counts(backend: QueueBackend) -> tuple[int, int, int, int]:
    """After what one call leaves for the next."""
    backend.claims.stats(QUEUE)
    stats = backend.claims.stats(QUEUE)
    return stats.claimed, stats.free, stats.delayed, stats.expired


def test_many_claims_end_together(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, *numbers(MANY + 20))
    for _ in range(MANY // 20):
        claim(backend, 20, ttl=60.0)
    harness.advance(60.0)
    held = claim(backend, 20)
    assert set(ids(held.messages)) < set(known)
    assert backend.claims.list_claims(QUEUE)[0].id == held.id
    assert counts(backend) == (20, MANY, 0, 0)
    backend.claims.release(QUEUE, held.id)
    assert ids(claim(backend, 20).messages) == known[:20]


def test_many_lives_end_together(harness: Harness, backend: QueueBackend) -> None:
    post(backend, *numbers(1_200), life=60.0)
    known = post(backend, b"left", b"over")
    harness.advance(60.0)
    assert ids(backend.claims.list_free(QUEUE)) == known
    assert ids(claim(backend, 1).messages) == known[:1]
    assert backend.stats(QUEUE).posted == 2
    assert counts(backend) == (1, 1, 0, 1_200)


def test_many_delays_end_together(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, *numbers(MANY), delay=60.0)
    harness.advance(60.0)
    assert ids(claim(backend, 20).messages) == known[:20]
    assert ids(backend.claims.list_free(QUEUE, limit=20)) == known[20:40]
    assert counts(backend) == (20, MANY - 20, 0, 0)
