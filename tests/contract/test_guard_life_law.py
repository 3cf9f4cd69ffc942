"""How long a hold lives: exactly as long as its lease, whichever way that ends."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import QUEUE, numbered
from support.looks import begin

from jobpool.broker.backend import QueueBackend
from jobpool.message.guards import Begin, Begun, Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases", "key_store")

GUARDS = Guards(key="order-17", keep=100.0, holds=(Hold("job:nightly"),))
PLACE = Guards(holds=GUARDS.holds)
KEY = Guards(key=GUARDS.key)

SETTLEMENTS: list[Settlement] = [
    Ack(),
    Nack(5.0, "boom"),
    Nack(),
    Abandon("hopeless"),
    Release(5.0),
    Release(begun=False),
    Move("mails"),
    Forfeit("SIGSEGV"),
]


@pytest.fixture
def pair(backend: QueueBackend) -> tuple[JobLease, JobLease]:
    """Leases of two messages; the first, for 10 s, was granted everything; the second, for 1,000 s, waits for it."""
    backend.enqueue_many(numbered(2))
    [holder] = backend.fetch_many(QUEUE, limit=1, ttl=10.0)
    [waiter] = backend.fetch_many(QUEUE, limit=1, ttl=1000.0)
    assert begin(backend, holder, GUARDS)
    assert is_held(backend, waiter)
    return holder.guarded(GUARDS), waiter


def is_held(backend: QueueBackend, waiter: JobLease) -> bool:
    """Whether the place and the key are both held; one without the other fails the test."""
    place, key = begin(backend, waiter, PLACE), begin(backend, waiter, KEY)
    assert (place.answer is Begin.HELD) == (key.answer is Begin.HELD)
    return place.answer is Begin.HELD


# --- settlements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settlement", SETTLEMENTS)
def test_it_ends_with_the_settlement(
    backend: QueueBackend, pair: tuple[JobLease, JobLease], settlement: Settlement
) -> None:
    holder, waiter = pair
    assert backend.settle_many([(holder, settlement)]) == [Settled.OK]
    assert backend.keys.holders(QUEUE, "job:nightly") == []
    assert backend.keys.holders(QUEUE, "key:order-17") == []
    assert begin(backend, waiter, PLACE)
    assert begin(backend, waiter, KEY).answer is (Begin.DONE if isinstance(settlement, Ack) else Begin.GRANTED)


@pytest.mark.parametrize("settlement", SETTLEMENTS)
def test_it_ends_with_a_settlement_that_says_nothing_of_guards(
    backend: QueueBackend, pair: tuple[JobLease, JobLease], settlement: Settlement
) -> None:
    """Life is the lease's alone: a caller that lost its `Guards` frees the places all the same, and no key is done."""
    holder, waiter = pair
    assert backend.settle_many([(replace(holder, guards=None), settlement)]) == [Settled.OK]
    assert begin(backend, waiter, Guards(key=GUARDS.key, holds=GUARDS.holds))


def test_a_refused_settlement_frees_nothing_of_the_next_delivery(
    backend: QueueBackend, pair: tuple[JobLease, JobLease]
) -> None:
    old, waiter = pair
    backend.release(old)
    [new] = backend.fetch_many(QUEUE, limit=1, ttl=50.0)
    assert begin(backend, new, GUARDS)
    for settlement in SETTLEMENTS:
        assert backend.settle_many([(old, settlement)]) == [Settled.NOT_OWNER], settlement
        assert is_held(backend, waiter), settlement
    assert backend.ack(new.guarded(GUARDS)) is Settled.OK
    assert not is_held(backend, waiter)


def test_settled_in_one_batch_the_places_of_all_are_free(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(6))
    guards = Guards(holds=(Hold("queue", 3),))
    leases = backend.fetch_many(QUEUE, limit=6)
    backend.keys.begin_many([(lease, guards) for lease in leases[:3]])
    batch: list[tuple[JobLease, Settlement]] = [
        (leases[0].guarded(guards), Ack()),
        (leases[1].guarded(guards), Nack(60.0)),
        (leases[2].guarded(guards), Abandon("hopeless")),
    ]
    assert backend.settle_many(batch) == [Settled.OK] * 3
    assert all(backend.keys.begin_many([(lease, guards) for lease in leases[3:]]))


# --- the deadline -----------------------------------------------------------------------------------------


def test_it_ends_at_the_deadline_and_not_before(
    harness: Harness, backend: QueueBackend, pair: tuple[JobLease, JobLease]
) -> None:
    """Whether or not anybody reaps."""
    _, waiter = pair
    harness.advance(10.0 - harness.tick)
    assert is_held(backend, waiter)
    harness.advance(harness.tick)
    assert not is_held(backend, waiter)


@pytest.mark.parametrize(("after", "ttl"), [(6.0, 20.0), (0.0, 2.0)], ids=["prolongs", "shortens"])
def test_renewing_the_lease_prolongs_or_shortens_it(
    harness: Harness, backend: QueueBackend, pair: tuple[JobLease, JobLease], after: float, ttl: float
) -> None:
    holder, waiter = pair
    harness.advance(after)
    assert backend.renew(holder, ttl).guards == GUARDS
    harness.advance(ttl - harness.tick)
    assert is_held(backend, waiter)
    harness.advance(harness.tick)
    assert not is_held(backend, waiter)


def test_what_outlived_the_renewals_is_done_with_the_ack(
    harness: Harness, backend: QueueBackend, pair: tuple[JobLease, JobLease]
) -> None:
    holder, waiter = pair
    for _ in range(20):
        harness.advance(9.0)
        holder = backend.renew(holder, 10.0)
    assert is_held(backend, waiter)
    assert backend.ack(holder)
    assert begin(backend, waiter, KEY).answer is Begin.DONE


# --- reaping ----------------------------------------------------------------------------------------------


@pytest.mark.lacks("native_reap")
def test_a_reap_leaves_the_holds_of_the_living(
    harness: Harness, backend: QueueBackend, pair: tuple[JobLease, JobLease]
) -> None:
    holder, waiter = pair
    assert backend.reap(QUEUE) == []
    assert is_held(backend, waiter)
    harness.advance(10.0)
    assert [reaped.id for reaped in backend.reap(QUEUE)] == [holder.id]
    assert not is_held(backend, waiter)


@pytest.mark.lacks("native_reap")
def test_it_ends_with_a_reap_by_age_though_the_lease_had_time_left(
    harness: Harness, backend: QueueBackend, pair: tuple[JobLease, JobLease]
) -> None:
    holder, waiter = pair
    harness.advance(4.0 + harness.tick)
    waiter = backend.renew(waiter, 1000.0)
    assert is_held(backend, waiter)
    assert backend.reap_expired(QUEUE, visibility_timeout=4.0) == 1
    assert begin(backend, holder, GUARDS) == Begun(Begin.LOST)
    assert not is_held(backend, waiter)


@pytest.mark.lacks("native_reap")
def test_a_message_that_died_by_the_crash_limit_holds_nothing(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(2))
    [holder] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    [waiter] = backend.fetch_many(QUEUE, limit=1, ttl=1000.0)
    begin(backend, holder, GUARDS)
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    [again] = backend.fetch_many(QUEUE, limit=1, ttl=5.0)
    assert begin(backend, again, GUARDS)
    backend.abandon(again.guarded(GUARDS), "crash-limit")
    assert not is_held(backend, waiter)
