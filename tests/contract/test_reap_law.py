"""Reap: every expiry is charged once, to crashes and never to attempts (laws 4 and 5)."""

from __future__ import annotations

import pytest
from support.claims import AT_ONCE, found
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Message, ReapPolicy

pytestmark = [pytest.mark.needs("leases"), pytest.mark.lacks("native_reap")]


def crash(harness: Harness, backend: QueueBackend, policy: ReapPolicy = AT_ONCE, cause: str = "") -> Message:
    """Lease the one message, lose it, reap it."""
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    if cause:
        backend.forfeit(lease, cause)
    else:
        harness.expire_leases(1.0)
    assert len(backend.reap(QUEUE, policy)) == 1
    return found(backend, lease.id)


def test_an_expired_message_comes_back_at_once_after_its_first_crash(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    backend.fetch_many(QUEUE, limit=1, ttl=3.0)
    harness.advance(3.0 - harness.tick)
    assert backend.reap(QUEUE) == []
    harness.advance(harness.tick)
    [reaped] = backend.reap(QUEUE)
    assert (reaped.id, reaped.queue, reaped.crashes, reaped.cause, reaped.dead) == (
        ident,
        QUEUE,
        1,
        "lease expired",
        False,
    )
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert (lease.attempts, lease.crashes, lease.deliveries) == (0, 1, 2)


def test_nobody_but_the_reaper_gives_an_expired_message_out_again(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    harness.expire_leases(1.0)
    assert backend.fetch_many(QUEUE, limit=1) == []
    assert backend.stats(QUEUE).leased == 1


def test_what_was_reaped_has_its_old_place(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(4))
    backend.fetch_many(QUEUE, limit=2, ttl=1.0)
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=4)] == [0, 1, 2, 3]


@pytest.mark.spans
def test_only_the_queue_that_was_named_is_reaped(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(), a_job(queue="mails")])
    backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    backend.fetch_many("mails", limit=1, ttl=1.0)
    harness.expire_leases(1.0)
    assert len(backend.reap("mails")) == 1
    assert backend.stats(QUEUE).leased == 1


def test_a_message_that_was_given_back_as_begun_is_so_after_a_crash(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.release(lease)
    crash(harness, backend, cause="oom")
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert lease.begun


@pytest.mark.needs("exact_crashes")
def test_crashes_before_the_window_are_forgotten(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    policy = ReapPolicy(window=3.0, back_off=0.0)
    assert crash(harness, backend, policy).crashes == 1
    harness.advance(1.0)
    assert crash(harness, backend, policy).crashes == 2
    harness.advance(2.0 + harness.tick)
    assert crash(harness, backend, policy).crashes == 1


@pytest.mark.spans
@pytest.mark.needs("exact_crashes")
def test_the_back_off_is_drawn_below_its_ceiling(harness: Harness, backend: QueueBackend) -> None:
    policy = ReapPolicy(max_crashes=0, back_off=100.0, back_off_cap=150.0)
    backend.enqueue_many(numbered(30))
    delays = []
    for crashes in (1, 2, 3):
        backend.fetch_many(QUEUE, limit=30, ttl=1.0)
        harness.expire_leases(1.0)
        assert len(backend.reap(QUEUE, policy)) == 30
        delays.append([message.available_at - harness.now() for message in backend.list_messages()])
        harness.advance(policy.ceiling(crashes) + harness.tick)
    first, second, third = delays
    assert max(map(abs, first)) <= harness.tick
    assert 10 < max(second) <= 100.0 + harness.tick
    assert 10 < max(third) <= 150.0 + harness.tick
    assert len({round(delay, 3) for delay in second}) > 15


def test_a_visibility_timeout_takes_back_what_was_taken_longer_ago(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(3))
    old, renewed = backend.fetch_many(QUEUE, limit=2, ttl=100.0)
    harness.advance(4.0)
    backend.renew(renewed, 100.0)
    backend.fetch_many(QUEUE, limit=1, ttl=100.0)
    harness.advance(6.0)
    assert backend.reap_expired(QUEUE, visibility_timeout=10.0) == 0
    harness.advance(harness.tick)
    assert backend.reap_expired(QUEUE, visibility_timeout=10.0) == 1
    assert not backend.ack(old)
    assert backend.ack(renewed)


def test_a_visibility_timeout_takes_back_what_has_expired_too(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    harness.expire_leases(1.0)
    assert backend.reap_expired(QUEUE, visibility_timeout=1000.0) == 1


def test_a_reap_takes_a_bounded_number_and_the_next_one_the_rest(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(1200))
    backend.fetch_many(QUEUE, limit=1200, ttl=1.0)
    harness.expire_leases(1.0)
    counts = [backend.reap_expired(QUEUE), backend.reap_expired(QUEUE), backend.reap_expired(QUEUE)]
    assert sum(counts) == 1200
    assert max(counts) <= 1000
    assert backend.stats(QUEUE).waiting == 1200
