"""Fetch: atomic, in order, fenced, and harmless to repeat (law 1)."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import REMEMBER_CALLS
from jobpool.errors import InvalidJob

pytestmark = pytest.mark.needs("leases")


def test_a_lease_tells_what_its_holder_needs(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job({"customer": 7}))
    before = backend.clock.boot()
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=12.0)
    assert (lease.id, lease.queue, lease.backend) == (ident, QUEUE, backend.scheme)
    assert (lease.attempts, lease.crashes, lease.deliveries) == (0, 0, 1)
    assert len(lease.owner_token) == 32
    assert int(lease.owner_token, 16) >= 0
    lasts = harness.lasts(12.0)
    assert before + lasts <= lease.expires_at <= backend.clock.boot() + lasts
    assert lease.enqueued_at == pytest.approx(harness.now(), abs=1.0)


def test_no_more_than_the_limit_and_no_message_twice(backend: QueueBackend) -> None:
    ids = backend.enqueue_many(numbered(10))
    first = backend.fetch_many(QUEUE, limit=4)
    second = backend.fetch_many(QUEUE, limit=100)
    assert [lease.id for lease in first + second] == ids
    assert backend.fetch_many(QUEUE, limit=1) == []
    assert len({lease.owner_token for lease in first + second}) == 10


def test_a_large_batch_comes_in_order(backend: QueueBackend) -> None:
    ids = backend.enqueue_many(numbered(1500))
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=2000)] == ids


def test_every_delivery_has_a_fresh_owner_and_a_higher_number(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    owners, deliveries = set(), []
    for how in (backend.release, backend.nack, None, backend.release):
        [lease] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
        owners.add(lease.owner_token)
        deliveries.append(lease.deliveries)
        if how:
            how(lease)
        else:
            harness.expire_leases(1.0)
            backend.reap(QUEUE)
    assert len(owners) == 4
    assert deliveries == [1, 2, 3, 4]


@pytest.mark.above
@pytest.mark.parametrize("name", ["", "a b", "ü", "a/b", "-a", "x" * 101, "a\n", "a;drop"])
def test_an_odd_queue_name_is_refused_everywhere(backend: QueueBackend, name: str) -> None:
    for call in (
        lambda: backend.fetch_many(name, limit=1),
        lambda: backend.wait_any([name], 0.0),
        lambda: backend.reap(name),
        lambda: backend.enqueue(a_job(queue=name)),
    ):
        with pytest.raises(InvalidJob, match="queue name"):
            call()


@pytest.mark.needs("idempotent_fetch")
def test_the_same_fetch_id_returns_the_same_leases(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(5))
    first = backend.fetch_many(QUEUE, limit=3, fetch_id="f1")
    again = backend.fetch_many(QUEUE, limit=3, fetch_id="f1")
    assert [(lease.id, lease.owner_token, lease.deliveries, lease.body) for lease in again] == [
        (lease.id, lease.owner_token, lease.deliveries, lease.body) for lease in first
    ]
    assert backend.stats(QUEUE).leased == 3
    assert all(backend.ack(lease) for lease in again)


@pytest.mark.needs("idempotent_fetch")
def test_a_repeated_fetch_leaves_out_what_was_settled_and_takes_nothing_new(
    harness: Harness, backend: QueueBackend
) -> None:
    backend.enqueue_many(numbered(5))
    one, two, three = backend.fetch_many(QUEUE, limit=3, ttl=10.0, fetch_id="f1")
    backend.ack(one)
    backend.release(two)
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=3, fetch_id="f1")] == [three.id]
    harness.expire_leases(10.0)
    assert backend.fetch_many(QUEUE, limit=3, fetch_id="f1") == []
    assert len(backend.fetch_many(QUEUE, limit=9, fetch_id="f2")) == 3


@pytest.mark.needs("idempotent_fetch")
def test_a_repeated_fetch_leaves_out_what_somebody_else_holds_by_now(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    [mine] = backend.fetch_many(QUEUE, limit=1, fetch_id="f1")
    backend.release(mine)
    [theirs] = backend.fetch_many(QUEUE, limit=1, fetch_id="f2")
    assert backend.fetch_many(QUEUE, limit=1, fetch_id="f1") == []
    assert backend.ack(theirs)


@pytest.mark.needs("idempotent_fetch")
def test_a_repeated_fetch_tells_the_deadline_that_the_lease_has_now(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=20.0, fetch_id="f1")
    harness.advance(5.0)
    renewed = backend.renew(lease, 30.0)
    [again] = backend.fetch_many(QUEUE, limit=1, ttl=20.0, fetch_id="f1")
    assert again.expires_at == pytest.approx(renewed.expires_at, abs=max(1e-5, harness.tick))


@pytest.mark.needs("idempotent_fetch")
def test_a_fetch_id_is_forgotten_after_a_minute(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(2))
    backend.fetch_many(QUEUE, limit=1, ttl=600.0, fetch_id="f1")
    harness.advance(REMEMBER_CALLS)
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=1, fetch_id="f1")] == [1]


@pytest.mark.spans
@pytest.mark.needs("idempotent_fetch")
def test_a_fetch_id_belongs_to_its_queue(backend: QueueBackend) -> None:
    backend.enqueue_many([a_job("report"), a_job("mail", queue="mails")])
    backend.fetch_many(QUEUE, limit=1, fetch_id="f1")
    [lease] = backend.fetch_many("mails", limit=1, fetch_id="f1")
    assert (lease.queue, lease.envelope.payload) == ("mails", "mail")


def test_an_empty_fetch_does_not_use_up_its_id(backend: QueueBackend) -> None:
    assert backend.fetch_many(QUEUE, limit=1, fetch_id="f1") == []
    backend.enqueue(a_job())
    assert len(backend.fetch_many(QUEUE, limit=1, fetch_id="f1")) == 1
