"""Whose a lease is: only its client's, where no other can use it; in normal life none is lost; how it is renewed."""

from __future__ import annotations

import pytest
from support.claims import found
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, new_lease, numbered
from support.looks import a_lease, is_refusal, recover, seen

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy, State
from jobpool.errors import LeaseLost
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases")

SETTLEMENTS: list[Settlement] = [
    Ack((a_job(queue="mails"),)),
    Nack(0.0, "boom", "SIGBUS"),
    Abandon("hopeless"),
    Release(),
    Release(5.0),
    Move("mails"),
    Forfeit("SIGSEGV"),
]


@pytest.mark.lacks("settle_anywhere")
def test_another_client_can_do_nothing_with_a_lease_and_harms_nothing(harness: Harness) -> None:
    owner, other = harness.open(), harness.open()
    lease = new_lease(owner)
    answers = [other.settle_many([(lease, settlement)])[0] for settlement in SETTLEMENTS]
    assert not any(answers)
    assert not any(other.settle_many([(lease, settlement) for settlement in SETTLEMENTS]))
    assert other.renew_many([lease], 30.0) == [None]
    assert other.fetch_many(QUEUE, limit=1) == []
    assert (owner.stats(QUEUE).leased, owner.stats(QUEUE).dead, owner.stats("mails").pending) == (1, 0, 0)
    renewed = owner.renew(lease, 30.0)
    assert (renewed.attempts, renewed.crashes, renewed.deliveries) == (0, 0, 1)
    assert owner.ack(renewed) is Settled.OK
    assert owner.stats(QUEUE).pending == 0


@pytest.mark.lacks("settle_anywhere")
def test_a_lease_of_before_says_nothing_about_the_same_client_s_next_one(
    harness: Harness, backend: QueueBackend
) -> None:
    """The broker knows the message by the same number, and the client has it leased again."""
    old = new_lease(backend)
    harness.expire_leases(30.0)
    new = a_lease(backend)
    assert not any(backend.settle_many([(old, settlement)])[0] for settlement in SETTLEMENTS)
    assert backend.renew_many([old, new], 30.0)[0] is None
    assert (backend.stats(QUEUE).leased, backend.stats("mails").pending) == (1, 0)
    assert backend.ack(new) is Settled.OK


@pytest.mark.needs("lasting_leases")
def test_a_client_that_closes_leaves_its_leases_to_expire(harness: Harness) -> None:
    one, other = harness.open(), harness.open()
    ident = one.enqueue(a_job())
    a_lease(one)
    one.close()
    assert other.fetch_many(QUEUE, limit=1) == []
    recover(harness, other, 30.0)
    again = a_lease(other)
    assert (again.id, again.attempts, again.deliveries) == (ident, 0, 2)


@pytest.mark.lacks("lasting_leases")
def test_a_client_that_closes_gives_its_leases_back(harness: Harness) -> None:
    one, other = harness.open(), harness.open()
    known = one.enqueue_many(numbered(3))
    leases = one.fetch_many(QUEUE, limit=2)
    one.close()
    again = other.fetch_many(QUEUE, limit=9, wait=5.0)
    assert sorted(lease.id for lease in again) == sorted(known)
    assert {lease.id: lease.deliveries for lease in again} == dict(zip(known, [2, 2, 1], strict=True))
    assert not any(other.ack(lease) for lease in leases)
    assert all(other.ack(lease) for lease in again)


@pytest.mark.lacks("exact_refusals")
def test_a_refusal_leaves_the_message_as_it_was(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    old = a_lease(backend)
    backend.release(old)
    assert not any(backend.settle_many([(old, settlement)])[0] for settlement in SETTLEMENTS)
    [lease] = backend.fetch_many(QUEUE, limit=9)
    assert (lease.id, lease.attempts, lease.crashes, lease.deliveries) == (ident, 0, 0, 2)
    assert backend.abandon(lease, "looked at")
    dead = found(backend, ident)
    assert (dead.last_error, dead.cause) == (None, None)
    assert (backend.stats(QUEUE).pending, backend.stats(QUEUE).dead, backend.stats("mails").pending) == (0, 1, 0)


def test_in_normal_life_no_lease_is_lost(harness: Harness, backend: QueueBackend) -> None:
    assert backend.lost() == []
    backend.enqueue_many(numbered(7))
    leases = backend.fetch_many(QUEUE, limit=7, ttl=30.0)
    backend.settle_many(list(zip(leases, SETTLEMENTS[:6], strict=False)))
    assert backend.lost() == []
    [renewed] = backend.renew_many([leases[6]], 30.0)
    assert renewed is not None
    backend.stats(QUEUE)
    backend.wait_any(["mails"], 0.0)
    assert backend.lost() == []
    harness.expire_leases(30.0)
    backend.reap(QUEUE)
    assert backend.renew_many([renewed], 30.0) == [None]
    assert backend.lost() == []
    backend.close()
    assert backend.lost() == []


# --- what a message keeps, and what it forgets, when its lease is lost ----------------------------------------


@pytest.mark.spans
def test_a_former_schedule_counts_no_longer(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job(scheduled_at=at(harness.now() + 60.0)))
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(61.0)
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    recover(harness, backend, 1.0, ReapPolicy(back_off=0.0))
    message = backend.inspect(ident)
    assert (message and message.state) is (State.WAITING if backend.capabilities.lists_live else None)
    assert (backend.stats(QUEUE).waiting, backend.stats(QUEUE).delayed) == (1, 0)
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert (again.id, again.deliveries) == (lease.id, 2)


def test_a_delay_of_a_retry_counts_no_longer_and_its_count_and_error_stay(
    harness: Harness, backend: QueueBackend
) -> None:
    first = new_lease(backend)
    backend.nack(first, delay=30.0, error="the last error")
    harness.advance(31.0)
    backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    recover(harness, backend, 1.0, ReapPolicy(back_off=0.0))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert lease.attempts == 1
    assert lease.crashes == 1 or not backend.capabilities.exact_counts
    backend.release(lease)
    assert seen(backend, lease.id).last_error == "the last error"


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


def test_when_one_lease_ends_others_of_its_client_go_on(harness: Harness) -> None:
    holder, other = harness.open(), harness.open()
    holder.enqueue_many(numbered(2))
    ending, going_on = holder.fetch_many(QUEUE, limit=2, ttl=20.0)
    half = harness.lasts(20.0) / 2
    harness.advance(half)
    going_on = holder.renew(going_on, 20.0)
    harness.advance(half)
    other.reap(QUEUE)
    harness.advance(1.0)
    assert holder.lost() == []
    going_on = holder.renew(going_on, 20.0)
    [again] = other.fetch_many(QUEUE, limit=2, wait=5.0)
    assert again.id == ending.id
    assert (holder.ack(going_on), other.ack(again)) == (Settled.OK, Settled.OK)


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
