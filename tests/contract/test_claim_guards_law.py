"""Guards and claims: a job that is claimed by hand holds nothing, waits for nothing, and leaves nothing done."""

from __future__ import annotations

import pytest
from support.claims import AT_ONCE, claim, found, ids
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import CLAIM_LIMIT, Deleted
from jobpool.broker.values import State
from jobpool.message.guards import Begin, Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled

pytestmark = pytest.mark.needs("leases", "key_store", "claims")

KEY = "order-17"
LOCK = Hold("job:nightly")
GUARDS = Guards(key=KEY, holds=(LOCK,))


def begin(backend: QueueBackend, lease: JobLease) -> Begin:
    [answer] = backend.keys.begin_many([(lease, GUARDS)])
    return answer.answer


def leased(backend: QueueBackend, ttl: float = 30.0) -> JobLease:
    """One more job, in the hands of a pool."""
    return new_lease(backend, priority=1, ttl=ttl)


@pytest.mark.lacks("native_reap")
def test_what_a_lost_lease_held_is_not_held_by_the_claim_that_follows(harness: Harness, backend: QueueBackend) -> None:
    lost = leased(backend, ttl=1.0)
    assert begin(backend, lost) is Begin.GRANTED
    harness.advance(1.0)
    backend.reap(QUEUE, AT_ONCE)
    assert ids(claim(backend).messages) == [lost.id]
    assert backend.keys.holders(QUEUE, LOCK.name) == []
    other = leased(backend)
    assert begin(backend, other) is Begin.GRANTED
    assert backend.ack(lost.guarded(GUARDS)) is Settled.NOT_OWNER
    assert backend.keys.holders(QUEUE, LOCK.name) == [other.id]


def test_a_claim_waits_for_no_guard_and_takes_none(backend: QueueBackend) -> None:
    running = leased(backend)
    assert begin(backend, running) is Begin.GRANTED
    waiting = leased(backend)
    assert begin(backend, waiting) is Begin.HELD
    backend.release(waiting)
    held = claim(backend)
    assert ids(held.messages) == [waiting.id]
    assert backend.keys.holders(QUEUE, LOCK.name) == [running.id]
    assert backend.ack(running.guarded(Guards(holds=(LOCK,))))
    assert backend.claims.release(QUEUE, held.id) == 1
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert begin(backend, again) is Begin.GRANTED


def test_a_job_that_is_deleted_by_hand_leaves_its_key_to_be_run(backend: QueueBackend) -> None:
    """It was not done by a pool, and nobody says that what a person did is the same."""
    ident = backend.enqueue(a_job(idempotency_key=KEY))
    held = claim(backend)
    assert backend.claims.delete_many(QUEUE, [ident], held.id) == [Deleted.DONE]
    assert begin(backend, leased(backend)) is Begin.GRANTED


def test_a_job_that_was_claimed_too_often_keeps_its_unique_key(backend: QueueBackend) -> None:
    """As every dead letter does: it can come back."""
    first = backend.enqueue(a_job(unique=True, idempotency_key="only"))
    backend.claims.release(QUEUE, claim(backend, max_claims=1).id)
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0, max_claims=1) is None
    dead = found(backend, first)
    assert (dead.state, dead.reason) == (State.DEAD, CLAIM_LIMIT)
    assert backend.enqueue(a_job(unique=True, idempotency_key="only")) == first
    assert backend.stats(QUEUE).waiting == 0
