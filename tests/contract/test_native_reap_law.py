"""A broker that frees expired leases itself: each crash is charged when its message is fetched next, a forfeit at once.

`reap` tells the policy, and answers with what was charged since it was called last. Where not every expiry can be told
from a release (`exact_crashes`), forfeits are still charged exactly.
"""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered
from support.looks import dead_letter

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, Reaped, ReapPolicy, Verb
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Forfeit, Move, Settled

pytestmark = pytest.mark.needs("leases", "native_reap")

THERE = "mails"
EXPIRED = "lease expired"

each_way = pytest.mark.parametrize(
    "cause",
    [
        pytest.param(EXPIRED, id="expired", marks=pytest.mark.needs("exact_crashes")),
        pytest.param("SIGSEGV in libfoo", id="forfeited"),
    ],
)
"""How a lease ends without a verdict."""


def a_lease(backend: QueueBackend, queue: str = QUEUE) -> JobLease:
    [lease] = backend.fetch_many(queue, limit=1, ttl=1.0)
    return lease


def lose(harness: Harness, backend: QueueBackend, leases: list[JobLease], cause: str) -> None:
    """End these leases, taken just now, without a verdict."""
    if cause == EXPIRED:
        harness.expire_leases(1.0)
    else:
        assert backend.settle_many([(lease, Forfeit(cause)) for lease in leases]) == [Settled.OK] * len(leases)


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


@pytest.mark.needs("exact_crashes")
@pytest.mark.parametrize("before", ["releases", "delayed releases", "nacks", "renewals", "retry", "resume"])
def test_one_expiry_is_one_crash_whatever_was_before(harness: Harness, backend: QueueBackend, before: str) -> None:
    backend.enqueue(a_job())
    for _ in range(2):
        lease = a_lease(backend)
        if before == "releases":
            backend.release(lease)
        elif before == "delayed releases":
            backend.release(lease, 5.0)
        elif before == "nacks":
            backend.nack(lease)
        elif before == "renewals":
            backend.release(backend.renew(backend.renew(lease, 1.0), 1.0))
        else:
            backend.abandon(lease, "hopeless")
            assert backend.bulk(MessageFilter(queue=QUEUE), Verb(before)) == 1
        harness.advance(5.0)
    crash(harness, backend, EXPIRED)
    lease = a_lease(backend)
    assert (lease.crashes, lease.deliveries) == (1, 4)
    assert lease.attempts == (2 if before == "nacks" else 0)


# --- the policy -------------------------------------------------------------------------------------------


@each_way
def test_past_the_limit_it_is_a_dead_letter_with_the_cause(harness: Harness, backend: QueueBackend, cause: str) -> None:
    ident = backend.enqueue(a_job())
    backend.reap(QUEUE, at_once(max_crashes=2))
    for _ in range(3):
        crash(harness, backend, cause)
    assert backend.fetch_many(QUEUE, limit=1) == []
    stats = backend.stats(QUEUE)
    assert (stats.pending, stats.dead) == (0, 1)
    dead = dead_letter(backend, ident)
    assert (dead.reason, dead.crashes, dead.attempts, dead.cause) == ("crash-limit", 3, 0, cause)
    assert dead.deliveries == 3
    assert dead.died_at == pytest.approx(harness.now(), abs=1.0)
    told = backend.reap(QUEUE, at_once(max_crashes=2))
    assert [(reaped.crashes, reaped.dead) for reaped in told] == [(1, False), (2, False), (3, True)]


def test_a_forfeit_past_the_limit_is_a_dead_letter_at_once(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    backend.reap(QUEUE, at_once(max_crashes=1))
    crash(harness, backend, "SIGSEGV")
    crash(harness, backend, "SIGBUS")
    assert (backend.stats(QUEUE).pending, backend.stats(QUEUE).dead) == (0, 1)
    assert dead_letter(backend, ident).cause == "SIGBUS"


@pytest.mark.needs("exact_crashes")
def test_the_cause_of_a_forfeit_is_not_that_of_the_next_crash(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    backend.reap(QUEUE, at_once())
    crash(harness, backend, "SIGSEGV")
    crash(harness, backend, EXPIRED)
    assert a_lease(backend).crashes == 2
    assert [reaped.cause for reaped in backend.reap(QUEUE)] == ["SIGSEGV", EXPIRED]


@each_way
def test_without_a_limit_it_always_comes_back(harness: Harness, backend: QueueBackend, cause: str) -> None:
    backend.enqueue(a_job())
    backend.reap(QUEUE, at_once(max_crashes=0))
    for _ in range(8):
        crash(harness, backend, cause)
    lease = a_lease(backend)
    assert (lease.crashes, lease.deliveries) == (8, 9)


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


@each_way
def test_what_waits_after_a_crash_holds_up_no_other(harness: Harness, backend: QueueBackend, cause: str) -> None:
    backend.enqueue_many(numbered(3))
    backend.reap(QUEUE, ReapPolicy(0, 1e6, back_off=1e6, back_off_cap=1e6))
    for _ in range(2):
        lose(harness, backend, backend.fetch_many(QUEUE, limit=3, ttl=1.0), cause)
    backend.enqueue(a_job("fresh"))
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=1)] == ["fresh"]
    stats = backend.stats(QUEUE)
    assert stats.pending == 4
    assert backend.fetch_many(QUEUE, limit=4) == []
    assert backend.stats(QUEUE).delayed == 3


def test_each_queue_has_its_own_policy(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(), a_job(queue=THERE)])
    backend.reap(QUEUE, at_once(max_crashes=1))
    backend.reap(THERE, at_once(max_crashes=2))
    for queue in (QUEUE, THERE) * 2:
        crash(harness, backend, "SIGSEGV", queue)
    assert [backend.stats(queue).dead for queue in (QUEUE, THERE)] == [1, 0]


# --- what was moved, or raised ----------------------------------------------------------------------------


@each_way
def test_a_crash_counts_on_top_of_those_that_came_with_a_move(
    harness: Harness, backend: QueueBackend, cause: str
) -> None:
    ident = backend.enqueue(a_job())
    assert backend.settle_many([(a_lease(backend), Move(THERE, crashes=1, cause="SIGKILL"))]) == [Settled.OK]
    backend.reap(THERE, at_once(max_crashes=1))
    crash(harness, backend, cause, THERE)
    assert backend.fetch_many(THERE, limit=1) == []
    dead = dead_letter(backend, ident)
    assert (dead.queue, dead.crashes, dead.cause) == (THERE, 2, cause)


@each_way
@pytest.mark.parametrize(("verb", "crashes"), [(Verb.RETRY, 1), (Verb.RESUME, 3)])
def test_what_died_of_crashes_and_was_raised_crashes_anew_or_on(
    harness: Harness, backend: QueueBackend, cause: str, verb: Verb, crashes: int
) -> None:
    backend.enqueue(a_job())
    backend.reap(QUEUE, at_once(max_crashes=1))
    for _ in range(2):
        crash(harness, backend, cause)
    assert backend.fetch_many(QUEUE, limit=1) == []
    backend.reap(QUEUE, at_once(max_crashes=0))
    assert backend.bulk(MessageFilter(reason="crash-limit"), verb) == 1
    crash(harness, backend, cause)
    lease = a_lease(backend)
    assert (lease.crashes, lease.deliveries) == (crashes, 4)
