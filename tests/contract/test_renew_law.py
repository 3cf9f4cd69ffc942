"""Renew: the same conditions as settling; the new deadline counts from now (laws 3 and 5)."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease, numbered
from support.looks import is_refusal

from jobpool.broker.backend import QueueBackend
from jobpool.errors import LeaseLost
from jobpool.message.settlement import Settled

pytestmark = pytest.mark.needs("leases")


def test_a_renewed_lease_ends_ttl_seconds_from_now(harness: Harness, backend: QueueBackend) -> None:
    lease = new_lease(backend, ttl=10.0)
    harness.advance(8.0)
    before = backend.clock.boot()
    renewed = backend.renew(lease, 5.0)
    lasts = harness.lasts(5.0)
    assert before + lasts <= renewed.expires_at <= backend.clock.boot() + lasts
    assert (renewed.owner_token, renewed.id) == (lease.owner_token, lease.id)
    harness.advance(lasts - harness.tick)
    assert backend.reap(QUEUE) == []
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(harness.tick)
    assert is_refusal(backend, backend.ack(renewed), Settled.EXPIRED)
    assert backend.stats(QUEUE).pending == 1


@pytest.mark.needs("chosen_ttl")
def test_a_renewal_may_shorten_a_lease(harness: Harness, backend: QueueBackend) -> None:
    lease = new_lease(backend, ttl=100.0)
    backend.renew(lease, 1.0)
    harness.advance(1.0)
    assert len(backend.reap(QUEUE)) == 1


def test_at_the_deadline_it_is_too_late(harness: Harness, backend: QueueBackend) -> None:
    lease = new_lease(backend, ttl=2.0)
    harness.advance(harness.lasts(2.0))
    with pytest.raises(LeaseLost, match=lease.id):
        backend.renew(lease, 5.0)


def test_each_lease_of_a_batch_has_its_answer(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(4))
    [expired] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    [other] = backend.fetch_many(QUEUE, limit=1)
    kept, settled = backend.fetch_many(QUEUE, limit=2)
    backend.ack(settled)
    answers = backend.renew_many([expired, kept, settled, other], 30.0)
    assert [answer and answer.id for answer in answers] == [None, kept.id, None, other.id]


def test_a_forfeited_lease_cannot_be_renewed(backend: QueueBackend) -> None:
    lease = new_lease(backend)
    backend.forfeit(lease, "SIGKILL")
    assert backend.renew_many([lease], 30.0) == [None]


@pytest.mark.spans
def test_a_renewal_touches_no_counter(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    renewed = backend.renew(lease, 30.0)
    message = backend.inspect(ident)
    assert message is None or (message.attempts, message.crashes, message.deliveries) == (0, 0, 1)
    assert (renewed.attempts, renewed.crashes, renewed.deliveries) == (0, 0, 1)
    backend.release(renewed)
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert (again.attempts, again.crashes, again.deliveries) == (0, 0, 2)


# --- where a lease lasts as long as the queue or the message says --------------------------------------------

each_ttl = pytest.mark.parametrize("ttl", [0.5, 30.0, 10_000.0])


@each_ttl
@pytest.mark.lacks("chosen_ttl")
def test_whatever_is_asked_the_lease_tells_its_end_and_ends_then(
    harness: Harness, backend: QueueBackend, ttl: float
) -> None:
    backend.enqueue(a_job())
    before = backend.clock.boot()
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=ttl)
    lasts = harness.lasts(ttl)
    assert before + lasts == pytest.approx(lease.expires_at, abs=0.5)
    assert lease.expires_at <= backend.clock.boot() + lasts
    harness.advance(lasts - harness.tick)
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(harness.tick)
    assert not backend.ack(lease)
    assert len(backend.fetch_many(QUEUE, limit=1)) == 1


@each_ttl
@pytest.mark.lacks("chosen_ttl")
def test_a_renewal_gives_the_whole_time_again(harness: Harness, backend: QueueBackend, ttl: float) -> None:
    lease = new_lease(backend, ttl=ttl)
    lasts = harness.lasts(ttl)
    for _ in range(3):
        harness.advance(0.7 * lasts)
        lease = backend.renew(lease, ttl)
        assert lease.expires_at == pytest.approx(backend.clock.boot() + lasts, abs=0.5)
        assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(lasts - harness.tick)
    assert backend.ack(lease) is Settled.OK
