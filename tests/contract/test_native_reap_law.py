"""A broker that frees expired leases itself: each crash is charged when its message is fetched next, a forfeit at once.

`reap` tells the policy, and answers with what was charged since it was called last. Where not every expiry can be told
from a release (`exact_crashes`), forfeits are still charged exactly.
"""

from __future__ import annotations

import pytest
from support.crashes import EXPIRED, each_way, lose
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Settled

pytestmark = pytest.mark.needs("leases", "native_reap")

THERE = "mails"


def a_lease(backend: QueueBackend, queue: str = QUEUE) -> JobLease:
    [lease] = backend.fetch_many(queue, limit=1, ttl=1.0)
    return lease


def crash(harness: Harness, backend: QueueBackend, cause: str, queue: str = QUEUE) -> JobLease:
    """Lease the next message of the queue, and lose it; the lease."""
    lease = a_lease(backend, queue)
    lose(harness, backend, [lease], cause)
    return lease


def at_once(max_crashes: int = 0, window: float = 1e6) -> ReapPolicy:
    return ReapPolicy(max_crashes, window, back_off=0.0)


# --- it comes back ----------------------------------------------------------------------------------------


def test_an_expired_message_is_fetched_again_by_itself(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    first = a_lease(backend)
    harness.advance(harness.lasts(1.0) - harness.tick)
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(harness.tick)
    again = a_lease(backend)
    assert (again.id, again.attempts, again.deliveries, again.body) == (ident, 0, 2, first.body)
    assert again.crashes == 1 or (again.crashes == 0 and not backend.capabilities.exact_counts)
    assert again.owner_token != first.owner_token
    assert not backend.ack(first)
    assert backend.ack(again) is Settled.OK
    assert backend.stats(QUEUE).pending == 0


def test_it_comes_back_to_any_client(harness: Harness) -> None:
    one, other = harness.open(), harness.open()
    ident = one.enqueue(a_job())
    mine = a_lease(one)
    harness.expire_leases(1.0)
    theirs = a_lease(other)
    assert (theirs.id, theirs.deliveries) == (ident, 2)
    assert not one.ack(mine)
    assert one.renew_many([mine], 30.0) == [None]
    assert other.ack(theirs) is Settled.OK


def test_deliveries_rise_with_every_lease_and_crashes_never_faster_than_leases_end(
    harness: Harness, backend: QueueBackend
) -> None:
    backend.enqueue(a_job())
    backend.reap(QUEUE, at_once())
    for expiries in range(5):
        lease = a_lease(backend)
        assert lease.deliveries == expiries + 1
        assert lease.crashes == expiries or (lease.crashes < expiries and not backend.capabilities.exact_counts)
        harness.expire_leases(1.0)


# --- it is charged ----------------------------------------------------------------------------------------


@pytest.mark.needs("exact_crashes")
def test_an_expiry_is_charged_by_the_next_fetch_and_told_once(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    crash(harness, backend, EXPIRED)
    assert backend.reap(QUEUE) == []
    lease = a_lease(backend)
    assert (lease.attempts, lease.crashes, lease.deliveries) == (0, 1, 2)
    assert backend.reap(QUEUE) == [Reaped(ident, QUEUE, 1, EXPIRED, dead=False)]
    assert backend.reap(QUEUE) == []


def test_a_forfeit_is_charged_at_once_and_told_once(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    lease = a_lease(backend)
    assert backend.forfeit(lease, "SIGSEGV") is Settled.OK
    assert backend.stats(QUEUE).waiting == 1
    assert not backend.ack(lease)
    assert backend.renew_many([lease], 30.0) == [None]
    assert backend.reap(QUEUE) == [Reaped(ident, QUEUE, 1, "SIGSEGV", dead=False)]
    assert backend.reap(QUEUE) == []
    again = a_lease(backend)
    assert (again.id, again.attempts, again.crashes, again.deliveries, again.body) == (ident, 0, 1, 2, lease.body)


def test_who_charged_it_tells_it(harness: Harness) -> None:
    one, other = harness.open(), harness.open()
    one.enqueue(a_job())
    crash(harness, one, "SIGSEGV")
    assert other.reap(QUEUE) == []
    assert [reaped.cause for reaped in one.reap(QUEUE)] == ["SIGSEGV"]


def test_what_was_charged_in_another_queue_is_told_there(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(), a_job(queue=THERE)])
    crash(harness, backend, "SIGSEGV")
    crash(harness, backend, "SIGBUS", THERE)
    assert backend.reap_expired(QUEUE) == 1
    assert [(reaped.queue, reaped.cause) for reaped in backend.reap(THERE)] == [(THERE, "SIGBUS")]


def test_a_release_charges_nothing(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    for deliveries in (1, 2, 3):
        lease = a_lease(backend)
        assert (lease.crashes, lease.deliveries) == (0, deliveries)
        backend.release(lease)
    assert a_lease(backend).crashes == 0
    assert backend.reap(QUEUE) == []


# --- the policy -------------------------------------------------------------------------------------------


@each_way
def test_crashes_before_the_window_are_forgotten(harness: Harness, backend: QueueBackend, cause: str) -> None:
    window = harness.lasts(1.0) + 3.0
    backend.enqueue(a_job())
    backend.reap(QUEUE, at_once(window=window))
    crashes = []
    for pause in (0.0, 1.0, window + 1.0):
        harness.advance(pause)
        crash(harness, backend, cause)
        lease = a_lease(backend)
        crashes.append(lease.crashes)
        backend.release(lease)
    assert crashes == [1, 2, 1]


@each_way
def test_the_back_off_after_later_crashes_is_drawn_below_its_ceiling(
    harness: Harness, backend: QueueBackend, cause: str
) -> None:
    backend.enqueue_many(numbered(30))
    backend.reap(QUEUE, ReapPolicy(0, 1e6, back_off=100.0, back_off_cap=150.0))
    lose(harness, backend, backend.fetch_many(QUEUE, limit=30, ttl=1.0), cause)
    leases = backend.fetch_many(QUEUE, limit=30, ttl=1.0)
    assert [lease.crashes for lease in leases] == [1] * 30
    lose(harness, backend, leases, cause)
    counts = []
    for pause in (0.0, 50.0, 50.0 + harness.delayed(100.0) - 100.0):
        harness.advance(pause)
        leases = backend.fetch_many(QUEUE, limit=30, ttl=1.0)
        assert all(lease.crashes == 2 for lease in leases)
        assert backend.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * len(leases)
        counts.append(len(leases))
    at_first, sooner, later = counts
    assert at_first < 5
    assert sooner > 0
    assert later > 0
    assert sum(counts) == 30


# --- what was moved, or raised ----------------------------------------------------------------------------


def test_each_queue_has_its_own_policy(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(), a_job(queue=THERE)])
    backend.reap(QUEUE, at_once(max_crashes=1))
    backend.reap(THERE, at_once(max_crashes=2))
    for queue in (QUEUE, THERE) * 2:
        crash(harness, backend, "SIGSEGV", queue)
    assert [backend.stats(queue).dead for queue in (QUEUE, THERE)] == [1, 0]
