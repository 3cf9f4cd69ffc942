"""Settling: conditional, in one step, answered in a fixed precedence, and harmless to repeat (law 2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support.claims import found
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease, numbered
from support.looks import a_lease, in_order, is_refusal, settle
from support.looks import picture as picture_of

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import REMEMBER_CALLS, State
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases")

SETTLEMENTS: list[Settlement] = [
    Ack(),
    Nack(5.0, "boom"),
    Abandon("hopeless", "boom"),
    Release(5.0),
    Move("mails", attempts=1, error="boom"),
    Forfeit("SIGSEGV"),
]


def picture(backend: QueueBackend) -> list[object]:
    """Everything that can be seen of the queue."""
    return picture_of(backend, QUEUE)


# --- what each verb does ----------------------------------------------------------------------------------


@pytest.mark.spans
def test_ack_removes_the_message(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    assert backend.ack(a_lease(backend)) is Settled.OK
    assert backend.inspect(ident) is None
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.spans
@pytest.mark.lacks("native_reap")
def test_forfeit_ends_the_lease_at_once_and_leaves_the_rest_to_the_reaper(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    lease = a_lease(backend)
    assert backend.forfeit(lease, "SIGSEGV") is Settled.OK
    message = found(backend, ident)
    assert (message.state, message.cause, message.crashes) == (State.LEASED, "SIGSEGV", 0)
    assert backend.fetch_many(QUEUE, limit=1) == []
    assert backend.ack(lease) is Settled.EXPIRED
    [reaped] = backend.reap(QUEUE)
    assert (reaped.id, reaped.crashes, reaped.cause, reaped.dead) == (ident, 1, "SIGSEGV", False)


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_a_delay_is_due_at_its_microsecond_and_not_before(harness: Harness, backend: QueueBackend, verb: str) -> None:
    backend.enqueue(a_job())
    getattr(backend, verb)(a_lease(backend), delay=1.5)
    harness.advance(harness.delayed(1.5) - harness.tick)
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(harness.tick)
    assert len(backend.fetch_many(QUEUE, limit=1)) == 1


@pytest.mark.parametrize("verb", ["nack", "release"])
@pytest.mark.parametrize("delay", [None, 0.0, -5.0, float("nan")])
def test_a_delay_that_is_none_or_below_zero_is_now(backend: QueueBackend, verb: str, delay: float | None) -> None:
    backend.enqueue(a_job())
    assert getattr(backend, verb)(a_lease(backend), delay=delay)
    assert len(backend.fetch_many(QUEUE, limit=1)) == 1


def test_an_odd_delay_in_a_batch_does_no_harm(backend: QueueBackend) -> None:
    odd: list[Settlement] = [Nack(float("inf")), Release(float("inf")), Nack(-3.0), Release(float("nan"))]
    for number, settlement in enumerate(odd, start=1):
        backend.enqueue(a_job())
        assert settle(backend, a_lease(backend), settlement) is Settled.OK
        assert backend.stats(QUEUE).pending == number, settlement


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_a_message_that_comes_back_has_its_old_place(harness: Harness, backend: QueueBackend, verb: str) -> None:
    backend.enqueue_many(numbered(4))
    first, second, *_ = backend.fetch_many(QUEUE, limit=2)
    getattr(backend, verb)(second, delay=1.0)
    getattr(backend, verb)(first)
    harness.advance(1.0)
    back = [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=5)]
    assert in_order(backend, back) == [0, 1, 2, 3]


# --- the answers, in their precedence ---------------------------------------------------------------------

Stage = Callable[[Harness, QueueBackend], JobLease]


def settled(settlement: Settlement) -> Stage:
    def stage(_: Harness, backend: QueueBackend) -> JobLease:
        lease = a_lease(backend)
        assert settle(backend, lease, settlement) is Settled.OK
        return lease

    return stage


def _reaped(harness: Harness, backend: QueueBackend) -> JobLease:
    lease = a_lease(backend, ttl=1.0)
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    return lease


def _at_the_deadline(harness: Harness, backend: QueueBackend) -> JobLease:
    lease = a_lease(backend, ttl=2.0)
    harness.advance(harness.lasts(2.0))
    return lease


def _held_by_another_and_expired(harness: Harness, backend: QueueBackend) -> JobLease:
    lease = _reaped(harness, backend)
    a_lease(backend, ttl=1.0)
    harness.expire_leases(1.0)
    return lease


def _held_by_another(harness: Harness, backend: QueueBackend) -> JobLease:
    lease = _reaped(harness, backend)
    a_lease(backend)
    return lease


REFUSALS = [
    pytest.param(settled(Ack()), Settled.NOT_IN_FLIGHT, id="gone"),
    pytest.param(settled(Release()), Settled.NOT_IN_FLIGHT, id="waiting"),
    pytest.param(settled(Nack(60.0)), Settled.NOT_IN_FLIGHT, id="delayed"),
    pytest.param(settled(Abandon("first")), Settled.NOT_IN_FLIGHT, id="dead"),
    pytest.param(_reaped, Settled.NOT_IN_FLIGHT, id="reaped"),
    pytest.param(_at_the_deadline, Settled.EXPIRED, id="at the deadline"),
    pytest.param(_held_by_another_and_expired, Settled.EXPIRED, id="held by another, whose lease has ended"),
    pytest.param(_held_by_another, Settled.NOT_OWNER, id="held by another"),
]


@pytest.mark.parametrize(("stage", "answer"), REFUSALS)
def test_a_refusal_has_its_answer_and_changes_nothing(
    harness: Harness, backend: QueueBackend, stage: Stage, answer: Settled
) -> None:
    """Each settlement is refused, one after the other: as none changes anything, each meets what the first met."""
    backend.enqueue(a_job())
    lease = stage(harness, backend)
    before = picture(backend)
    for settlement in SETTLEMENTS:
        assert is_refusal(backend, settle(backend, lease, settlement), answer), settlement
        assert picture(backend) == before, settlement


def test_a_tick_before_the_deadline_it_is_accepted(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([a_job() for _ in SETTLEMENTS])
    leases = [a_lease(backend, ttl=2.0) for _ in SETTLEMENTS]
    harness.advance(harness.lasts(2.0) - harness.tick)
    for lease, settlement in zip(leases, SETTLEMENTS, strict=True):
        assert settle(backend, lease, settlement) is Settled.OK, settlement


@pytest.mark.needs("settle_anywhere")
def test_another_client_may_settle_with_the_lease(harness: Harness) -> None:
    """The owner token is the proof, not the connection."""
    one, other = harness.open(), harness.open()
    one.enqueue_many([a_job() for _ in SETTLEMENTS])
    leases = [a_lease(one) for _ in SETTLEMENTS]
    for lease, settlement in zip(leases, SETTLEMENTS, strict=True):
        assert settle(other, lease, settlement) is Settled.OK, settlement


def test_a_lease_that_was_never_given_is_refused(backend: QueueBackend) -> None:
    lease = new_lease(backend, ttl=10.0)
    assert is_refusal(backend, backend.ack(replace(lease, owner_token="0" * 32)), Settled.NOT_OWNER)
    never = replace(lease, id="0" * 16, token=None, owner_token="1" * 32)
    assert is_refusal(backend, backend.ack(never), Settled.NOT_IN_FLIGHT)
    assert backend.ack(lease) is Settled.OK


# --- repeats ----------------------------------------------------------------------------------------------


VERBS = [
    pytest.param("ack", (), id="ack"),
    pytest.param("nack", (5.0, "boom"), id="nack"),
    pytest.param("abandon", ("hopeless",), id="abandon"),
    pytest.param("release", (5.0,), id="release"),
    pytest.param("forfeit", ("SIGSEGV",), id="forfeit"),
]


@pytest.mark.needs("idempotent_settle")
@pytest.mark.parametrize(("verb", "arguments"), VERBS)
def test_a_repeated_verb_answers_already_and_changes_nothing(
    harness: Harness, backend: QueueBackend, verb: str, arguments: tuple[object, ...]
) -> None:
    lease = new_lease(backend, ttl=10.0)
    assert getattr(backend, verb)(lease, *arguments) is Settled.OK
    harness.advance(1.0)
    before = picture(backend)
    assert getattr(backend, verb)(lease, *arguments) is Settled.ALREADY
    assert getattr(harness.open(), verb)(lease, *arguments) is Settled.ALREADY
    assert picture(backend) == before


@pytest.mark.spans
@pytest.mark.needs("idempotent_settle")
def test_the_stored_reason_and_time_stay_those_of_the_first_call(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    lease = a_lease(backend)
    backend.abandon(lease, "first")
    first = backend.inspect(ident)
    harness.advance(2.0)
    assert backend.abandon(lease, "second") is Settled.ALREADY
    assert backend.inspect(ident) == first


@pytest.mark.needs("idempotent_settle")
def test_a_repeat_answers_already_even_when_somebody_else_holds_the_message(backend: QueueBackend) -> None:
    mine = new_lease(backend, ttl=10.0)
    backend.release(mine)
    theirs = a_lease(backend)
    assert backend.release(mine) is Settled.ALREADY
    assert backend.nack(mine) is Settled.NOT_OWNER
    assert backend.ack(theirs) is Settled.OK


@pytest.mark.needs("idempotent_settle")
def test_a_call_is_forgotten_after_a_minute(harness: Harness, backend: QueueBackend) -> None:
    lease = new_lease(backend, ttl=10.0)
    backend.ack(lease)
    harness.advance(REMEMBER_CALLS - harness.tick)
    assert backend.ack(lease) is Settled.ALREADY
    harness.advance(harness.tick)
    assert backend.ack(lease) is Settled.NOT_IN_FLIGHT


@pytest.mark.needs("idempotent_settle")
def test_a_repeated_batch_answers_as_the_first_time(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([*numbered(4), a_job("mail", queue="mails")])
    expired = a_lease(backend, ttl=1.0)
    harness.expire_leases(1.0)
    leases, [mail] = backend.fetch_many(QUEUE, limit=3), backend.fetch_many("mails", limit=1)
    backend.ack(leases[1])
    batch: list[tuple[JobLease, Settlement]] = [
        (expired, Ack()),
        (leases[0], Ack()),
        (leases[1], Ack()),
        (mail, Ack()),
        (leases[2], Nack()),
    ]
    first = backend.settle_many(batch, call_id="c1")
    assert first == [Settled.EXPIRED, Settled.OK, Settled.NOT_IN_FLIGHT, Settled.OK, Settled.OK]
    backend.reap(QUEUE)
    before = picture_of(backend, QUEUE, "mails")
    again = backend.settle_many(batch, call_id="c1")
    assert again == [Settled.ALREADY if answer is Settled.OK else answer for answer in first]
    assert picture_of(backend, QUEUE, "mails") == before


# --- batches ----------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_a_batch_may_mix_verbs_queues_and_refusals(backend: QueueBackend) -> None:
    backend.enqueue_many([*numbered(5), a_job("mail", queue="mails")])
    leases = backend.fetch_many(QUEUE, limit=5)
    [mail] = backend.fetch_many("mails", limit=1)
    backend.ack(leases[4])
    answers = backend.settle_many(
        [
            (leases[0], Ack()),
            (leases[1], Nack(60.0, "boom")),
            (leases[4], Nack()),
            (leases[2], Abandon("hopeless")),
            (mail, Ack()),
            (leases[3], Release()),
        ]
    )
    assert is_refusal(backend, answers.pop(2), Settled.NOT_IN_FLIGHT)
    assert answers == [Settled.OK] * 5
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead) == (1, 1, 0, 1)
    assert backend.stats("mails").pending == 0


@pytest.mark.spans
@pytest.mark.parametrize("second", [Ack(), Nack(), Abandon("x"), Release(), Move("mails")])
def test_a_lease_twice_in_one_batch_is_settled_once(
    harness: Harness, backend: QueueBackend, second: Settlement
) -> None:
    lease = new_lease(backend, ttl=10.0)
    accepted, refused = backend.settle_many([(lease, Nack(1.0, "boom")), (lease, second)])
    assert accepted is Settled.OK
    assert is_refusal(backend, refused, Settled.NOT_IN_FLIGHT)
    assert (backend.stats(QUEUE).pending, backend.stats(QUEUE).delayed, backend.stats("mails").pending) == (1, 1, 0)
    harness.advance(1.0)
    assert a_lease(backend).attempts == 1


def test_after_a_forfeit_in_the_same_batch_the_lease_has_ended(backend: QueueBackend) -> None:
    lease = new_lease(backend, ttl=10.0)
    accepted, refused = backend.settle_many([(lease, Forfeit("SIGSEGV")), (lease, Ack())])
    assert accepted is Settled.OK
    assert is_refusal(backend, refused, Settled.EXPIRED)
    assert backend.stats(QUEUE).pending == 1


def test_an_empty_batch_is_answered_with_nothing(backend: QueueBackend) -> None:
    assert backend.settle_many([]) == []
    assert backend.renew_many([], 30.0) == []


def test_a_batch_of_a_thousand(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(1000))
    leases = backend.fetch_many(QUEUE, limit=1000)
    assert backend.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * 1000
    assert backend.stats(QUEUE).pending == 0
