"""Guards: what is granted to a lease is granted all or nothing, and held exactly as long as the lease is live."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered
from support.looks import begin, settle

from jobpool.broker.backend import QueueBackend
from jobpool.client.worker import QueueWorker
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.guards import Begin, Begun, Guards, Hold, Rate
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Status
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases", "key_store")

LOCK = Hold("job:nightly")
KEY = Guards(key="order-17")
LOCKED = Guards(holds=(LOCK,))
ONE_A_MINUTE = Rate("queue", 1)


def leases(backend: QueueBackend, count: int, ttl: float = 30.0, queue: str = QUEUE) -> list[JobLease]:
    """So many messages, leased together."""
    backend.enqueue_many(numbered(count, queue=queue))
    return backend.fetch_many(queue, limit=count, ttl=ttl)


def granted(backend: QueueBackend, lease: JobLease, guards: Guards) -> JobLease:
    """The lease with its guards, or the test fails."""
    assert begin(backend, lease, guards) == Begun(Begin.GRANTED)
    return lease.guarded(guards)


def refused(answer: Begin, name: str) -> Begun:
    return Begun(answer, name)


@pytest.mark.spans
def test_a_chain_goes_on_past_what_is_skipped_because_it_is_done(backend: QueueBackend) -> None:
    registry, ran = HandlerRegistry(), []
    registry.handler("report")(lambda ctx: ran.append((ctx.payload, ctx.previous)))
    worker = QueueWorker(backend, registry)
    last = a_job("last", queue="other")
    skipped = a_job("skipped", idempotency_key="k", then=(a_job("next").with_previous([]), last))
    backend.enqueue_many([a_job("first", idempotency_key="k"), skipped])
    statuses = [worker.process_once(queue).status for queue in (QUEUE, QUEUE, QUEUE, "other", "other")]
    assert statuses == [Status.ACKED, Status.SKIPPED_IDEMPOTENT, Status.ACKED, Status.ACKED, Status.EMPTY]
    assert ran == [("first", None), ("next", None), ("last", None)]


# --- what is granted, and to whom -------------------------------------------------------------------------


def test_nothing_asked_is_granted(backend: QueueBackend) -> None:
    assert backend.keys.begin_many([]) == []
    [lease] = leases(backend, 1)
    assert begin(backend, lease, Guards())


def test_a_key_runs_under_one_message_at_a_time(backend: QueueBackend) -> None:
    one, other = leases(backend, 2)
    granted(backend, one, KEY)
    assert begin(backend, other, KEY) == refused(Begin.HELD, "order-17")
    assert begin(backend, other, Guards(key="order-18"))


def test_a_name_has_as_many_places_as_the_one_who_asks_says(backend: QueueBackend) -> None:
    one, two, three, four = leases(backend, 4)
    for lease in (one, two):
        granted(backend, lease, Guards(holds=(Hold("queue", 2),)))
    assert begin(backend, three, Guards(holds=(Hold("queue", 2),))) == refused(Begin.HELD, "queue")
    assert begin(backend, three, Guards(holds=(Hold("queue", 3),)))
    assert begin(backend, four, Guards(holds=(Hold("queue", 3),))) == refused(Begin.HELD, "queue")


def test_so_many_starts_are_within_a_rate(backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    guards = Guards(rates=(Rate("queue", 2),))
    granted(backend, one, guards)
    granted(backend, two, guards)
    assert begin(backend, three, guards) == Begun(Begin.LIMITED, "queue", 60.0)


@pytest.mark.spans
def test_keys_places_and_rates_of_one_name_are_three_things(backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    granted(backend, one, Guards(key="same"))
    granted(backend, two, Guards(holds=(Hold("same"),)))
    granted(backend, three, Guards(rates=(Rate("same", 1),)))


@pytest.mark.spans
def test_all_of_it_is_scoped_by_the_queue_of_the_lease(backend: QueueBackend) -> None:
    guards = Guards(key="order-17", holds=(LOCK,), rates=(ONE_A_MINUTE,))
    [here], [there] = leases(backend, 1), leases(backend, 1, queue="mails")
    mine = granted(backend, here, guards)
    granted(backend, there, guards)
    assert backend.ack(mine)
    [again] = leases(backend, 1, queue="mails")
    assert begin(backend, again, KEY) == refused(Begin.HELD, "order-17")


def test_what_one_client_was_granted_another_is_refused(harness: Harness) -> None:
    one, other = harness.open(), harness.open()
    first, second = leases(one, 2)
    granted(one, first, LOCKED)
    assert begin(other, second, LOCKED) == refused(Begin.HELD, LOCK.name)
    assert other.keys.holders(QUEUE, LOCK.name) == [first.id]


# --- the order of refusal, and that a refusal changes nothing ---------------------------------------------


def everything(**changed: object) -> Guards:
    guards = Guards(key="k", holds=(Hold("h1"), Hold("h2")), rates=(Rate("r1", 1), Rate("r2", 1)))
    return replace(guards, **changed)


TAKEN = {
    "the key first": (everything(), refused(Begin.HELD, "k")),
    "then the first hold": (everything(key=None), refused(Begin.HELD, "h1")),
    "then the next": (everything(key=None, holds=(Hold("free"), Hold("h2"))), refused(Begin.HELD, "h2")),
    "then the first rate": (everything(key="free", holds=()), Begun(Begin.LIMITED, "r1", 60.0)),
    "then the next rate": (
        everything(key="free", holds=(Hold("free"),), rates=(Rate("free", 1), Rate("r2", 1, 30.0))),
        Begun(Begin.LIMITED, "r2", 30.0),
    ),
}


def test_the_first_that_refuses_is_named(backend: QueueBackend) -> None:
    one, other = leases(backend, 2)
    granted(backend, one, everything())
    for name, (asked, answer) in TAKEN.items():
        assert begin(backend, other, asked) == answer, name


def test_a_lease_that_has_ended_is_refused_before_anything_else(backend: QueueBackend) -> None:
    one, other = leases(backend, 2)
    granted(backend, one, everything())
    backend.release(other)
    assert begin(backend, other, everything()) == Begun(Begin.LOST)


def test_a_done_key_is_told_before_a_taken_place(backend: QueueBackend) -> None:
    one, other = leases(backend, 2)
    backend.keys.first_run(QUEUE, "k")
    granted(backend, one, Guards(holds=(LOCK,)))
    assert begin(backend, other, Guards(key="k", holds=(LOCK,))) == refused(Begin.DONE, "k")


def test_a_refused_rate_leaves_no_key_and_no_hold_behind(backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    granted(backend, one, Guards(rates=(ONE_A_MINUTE,)))
    wanted = Guards(key="order-17", holds=(LOCK,))
    assert begin(backend, two, replace(wanted, rates=(ONE_A_MINUTE,))).answer is Begin.LIMITED
    assert backend.keys.holders(QUEUE, LOCK.name) == []
    assert backend.keys.holders(QUEUE, "key:order-17") == []
    granted(backend, three, wanted)


def test_a_refused_hold_takes_no_other_place_and_no_start(backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    granted(backend, one, LOCKED)
    free = Guards(key="order-17", holds=(Hold("queue"),), rates=(ONE_A_MINUTE,))
    assert begin(backend, two, replace(free, holds=(Hold("queue"), LOCK))) == refused(Begin.HELD, LOCK.name)
    granted(backend, three, free)


def test_a_second_rate_that_refuses_takes_no_start_of_the_first(backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    granted(backend, one, Guards(rates=(Rate("b", 1),)))
    assert begin(backend, two, Guards(rates=(Rate("a", 1), Rate("b", 1)))).name == "b"
    granted(backend, three, Guards(rates=(Rate("a", 1),)))


# --- batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guards", "answer"),
    [
        (KEY, refused(Begin.HELD, "order-17")),
        (LOCKED, refused(Begin.HELD, LOCK.name)),
        (Guards(rates=(ONE_A_MINUTE,)), Begun(Begin.LIMITED, "queue", 60.0)),
    ],
    ids=["key", "hold", "rate"],
)
def test_of_several_in_one_batch_that_want_the_same_exactly_the_first_gets_it(
    backend: QueueBackend, guards: Guards, answer: Begun
) -> None:
    asked = [(lease, guards) for lease in leases(backend, 4)]
    assert backend.keys.begin_many(asked) == [Begun(Begin.GRANTED), answer, answer, answer]


@pytest.mark.spans
def test_a_batch_is_answered_in_order_over_queues_and_refusals(backend: QueueBackend) -> None:
    one, two, gone = leases(backend, 3)
    [mail] = leases(backend, 1, queue="mails")
    backend.ack(gone)
    answers = backend.keys.begin_many([(one, LOCKED), (gone, LOCKED), (mail, LOCKED), (two, LOCKED), (two, KEY)])
    assert [answer.answer for answer in answers] == [
        Begin.GRANTED,
        Begin.LOST,
        Begin.GRANTED,
        Begin.HELD,
        Begin.GRANTED,
    ]


def test_a_hundred_at_once(backend: QueueBackend) -> None:
    guards = Guards(holds=(Hold("queue", 40),))
    many = leases(backend, 100)
    answers = backend.keys.begin_many([(lease, guards) for lease in many])
    assert [bool(answer) for answer in answers] == [True] * 40 + [False] * 60
    assert backend.keys.holders(QUEUE, "queue") == sorted(lease.id for lease in many[:40])


# --- asked again ------------------------------------------------------------------------------------------


def test_granted_again_to_the_same_lease_it_counts_nothing_twice(harness: Harness, backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    guards = Guards(key="order-17", holds=(Hold("queue", 2),), rates=(Rate("queue", 2),))
    for _ in range(3):
        granted(harness.open(), one, guards)
        harness.advance(1.0)
    granted(backend, two, replace(guards, key=None))
    assert begin(backend, three, Guards(holds=guards.holds)).answer is Begin.HELD
    assert begin(backend, three, Guards(rates=guards.rates)).answer is Begin.LIMITED
    assert backend.keys.holders(QUEUE, "queue") == sorted([one.id, two.id])


def test_a_start_that_is_asked_again_leaves_the_window_when_the_first_did(
    harness: Harness, backend: QueueBackend
) -> None:
    one, two = leases(backend, 2, ttl=200.0)
    guards = Guards(rates=(ONE_A_MINUTE,))
    granted(backend, one, guards)
    harness.advance(30.0)
    granted(backend, one, guards)
    harness.advance(30.0)
    granted(backend, two, guards)


def test_a_lease_twice_in_one_batch_is_granted_once_and_answered_twice(backend: QueueBackend) -> None:
    one, two = leases(backend, 2)
    guards = Guards(key="order-17", rates=(Rate("queue", 2),))
    assert backend.keys.begin_many([(one, guards), (one, guards)]) == [Begun(Begin.GRANTED)] * 2
    granted(backend, two, Guards(rates=guards.rates))


@pytest.mark.needs("idempotent_fetch")
def test_a_fetch_that_is_repeated_may_ask_again(backend: QueueBackend) -> None:
    """Its reply was lost after all was granted, or so it seems to who asked."""
    backend.enqueue_many(numbered(3))
    guards = Guards(key="order-17", holds=(Hold("queue", 2),), rates=(Rate("queue", 2),))
    [lease] = backend.fetch_many(QUEUE, limit=1, fetch_id="the-call")
    granted(backend, lease, guards)
    [again] = backend.fetch_many(QUEUE, limit=1, fetch_id="the-call")
    assert again.owner_token == lease.owner_token
    granted(backend, again, guards)
    other, third = backend.fetch_many(QUEUE, limit=2)
    granted(backend, other, replace(guards, key=None))
    assert begin(backend, third, replace(guards, key=None)) == refused(Begin.HELD, "queue")


# --- a lease that may not ask -----------------------------------------------------------------------------


@pytest.mark.parametrize("settlement", [Ack(), Nack(), Abandon(), Release(), Forfeit("SIGSEGV")])
def test_a_settled_lease_is_lost(backend: QueueBackend, settlement: Settlement) -> None:
    [lease] = leases(backend, 1)
    assert settle(backend, lease, settlement) is Settled.OK
    assert begin(backend, lease, LOCKED) == Begun(Begin.LOST)


def test_an_expired_lease_is_lost_at_its_deadline_and_not_before(harness: Harness, backend: QueueBackend) -> None:
    one, two = leases(backend, 2, ttl=2.0)
    harness.advance(2.0 - harness.tick)
    granted(backend, one, KEY)
    harness.advance(harness.tick)
    assert begin(backend, two, LOCKED) == Begun(Begin.LOST)
    assert begin(backend, one, KEY) == Begun(Begin.LOST)


def test_a_lease_that_was_never_given_is_lost(backend: QueueBackend) -> None:
    [lease] = leases(backend, 1)
    assert begin(backend, replace(lease, owner_token="0" * 32), LOCKED) == Begun(Begin.LOST)
    assert begin(backend, lease, LOCKED)


def test_what_is_lost_takes_no_place_and_no_start(backend: QueueBackend) -> None:
    late, good = leases(backend, 2, ttl=60.0)
    guards = Guards(key="order-17", holds=(LOCK,), rates=(ONE_A_MINUTE,))
    backend.release(late, delay=5.0)
    assert begin(backend, late, guards) == Begun(Begin.LOST)
    granted(backend, good, guards)
    assert backend.keys.holders(QUEUE, LOCK.name) == [good.id]


# --- one message, several deliveries ----------------------------------------------------------------------


@pytest.fixture
def deliveries(harness: Harness, backend: QueueBackend) -> tuple[JobLease, JobLease]:
    """Two leases of one message: the first had everything and ran out, the second lives."""
    [old] = leases(backend, 1, ttl=1.0)
    old = granted(backend, old, Guards(key="order-17", holds=(LOCK,)))
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    [new] = backend.fetch_many(QUEUE, limit=1)
    assert new.id == old.id
    return old, new


@pytest.mark.lacks("native_reap")
def test_what_an_earlier_delivery_held_its_message_takes_over(
    backend: QueueBackend, deliveries: tuple[JobLease, JobLease]
) -> None:
    """Killed after the key was taken, before the effect: it runs again."""
    _, new = deliveries
    mine = granted(backend, new, Guards(key="order-17", holds=(LOCK,)))
    assert backend.keys.holders(QUEUE, LOCK.name) == [new.id]
    assert backend.ack(mine) is Settled.OK
    [other] = leases(backend, 1)
    assert begin(backend, other, KEY) == refused(Begin.DONE, "order-17")


@pytest.mark.lacks("native_reap")
def test_an_old_delivery_takes_nothing_that_a_newer_one_holds(
    backend: QueueBackend, deliveries: tuple[JobLease, JobLease]
) -> None:
    old, new = deliveries
    guards = Guards(key="order-17", holds=(LOCK,))
    granted(backend, new, guards)
    assert begin(backend, old, guards) == Begun(Begin.LOST)
    assert backend.ack(old) is Settled.NOT_OWNER
    assert backend.release(old) is Settled.NOT_OWNER
    assert backend.keys.holders(QUEUE, LOCK.name) == [new.id]
    [other] = leases(backend, 1)
    assert begin(backend, other, KEY) == refused(Begin.HELD, "order-17")


@pytest.mark.lacks("native_reap")
def test_an_earlier_delivery_keeps_nothing_from_others(
    backend: QueueBackend, deliveries: tuple[JobLease, JobLease]
) -> None:
    """The newer delivery has asked for nothing yet: what the old one held is free, whoever comes first."""
    _, new = deliveries
    [other] = leases(backend, 1)
    granted(backend, other, LOCKED)
    assert begin(backend, new, LOCKED) == refused(Begin.HELD, LOCK.name)


@pytest.mark.lacks("native_reap")
def test_a_start_of_an_earlier_delivery_counts(harness: Harness, backend: QueueBackend) -> None:
    [old] = leases(backend, 1, ttl=1.0)
    granted(backend, old, Guards(rates=(ONE_A_MINUTE,)))
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    [new] = backend.fetch_many(QUEUE, limit=1)
    assert begin(backend, new, Guards(rates=(ONE_A_MINUTE,))) == Begun(Begin.LIMITED, "queue", 59.0)


# --- who holds --------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_holders_are_the_messages_that_hold_a_name_now(harness: Harness, backend: QueueBackend) -> None:
    long, short, outside = leases(backend, 3)
    for lease in (long, short):
        granted(backend, lease, Guards(key=f"order-{lease.id}", holds=(Hold("queue", 9),)))
    granted(backend, outside, Guards(holds=(LOCK,)))
    assert backend.keys.holders(QUEUE, "queue") == sorted([long.id, short.id])
    assert backend.keys.holders(QUEUE, f"key:order-{long.id}") == [long.id]
    assert backend.keys.holders("mails", "queue") == []
    assert backend.keys.holders(QUEUE, "nobody") == []
    backend.release(short)
    assert backend.keys.holders(QUEUE, "queue") == [long.id]
    harness.advance(30.0)
    assert backend.keys.holders(QUEUE, "queue") == []


@pytest.mark.parametrize("name", ["Zürich №5", "a b:c%_*?[x]{y}\\'\"", "x" * 300])
def test_any_printable_name_will_do(backend: QueueBackend, name: str) -> None:
    one, two = leases(backend, 2)
    guards = Guards(key=name[:255], holds=(Hold(name),), rates=(Rate(name, 1),))
    granted(backend, one, guards)
    assert begin(backend, two, replace(guards, key=None)) == refused(Begin.HELD, name)
    assert begin(backend, two, Guards(rates=guards.rates)).answer is Begin.LIMITED
    assert backend.keys.holders(QUEUE, name) == [one.id]
    assert backend.keys.holders(QUEUE, f"key:{name[:255]}") == [one.id]


@pytest.mark.spans
def test_guards_are_no_messages(backend: QueueBackend) -> None:
    """Nothing of it is counted, listed, or keeps a queue alive."""
    [lease] = leases(backend, 1)
    mine = granted(backend, lease, Guards(key="order-17", holds=(LOCK,), rates=(ONE_A_MINUTE,)))
    assert (backend.stats(QUEUE).pending, len(backend.list_messages())) == (1, 1)
    assert backend.ack(mine)
    assert (backend.stats(QUEUE).pending, backend.list_messages(), backend.queues()) == (0, [], [])


GUARDS = Guards(key="order-17", keep=100.0, holds=(Hold("job:nightly"),))
PLACE = Guards(holds=GUARDS.holds)
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
