"""The settle thread on brokers that are silent, in whole or in parts, that refuse, or that free leases themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

import pytest
from msgspec import Raw
from msgspec.structs import replace
from running import Running, Settling, held
from stage import Stage
from support.jobs import QUEUE, a_job
from support.modest import Modest
from support.waiting import wait_until

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import Capabilities, MessageFilter, QueueStats, Reaped, ReapPolicy, State
from jobpool.errors import AccessRefused, BackendUnavailable, ConfigurationError, InvalidJob, WriteRefused
from jobpool.master import events as ev
from jobpool.master import settle_thread
from jobpool.master.slots import Delivery
from jobpool.master.threads import RenewThread
from jobpool.message.definition import JobDefinition, SentJobs
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Settled
from jobpool_backends.memory import MemoryBackend

# --- looks at the counts: what first tells that a broker is back ---------------------------------------------------


class SilentThrice(MemoryBackend):
    silent = 3

    def stats(self, queue: str) -> QueueStats:
        if self.silent:
            self.silent -= 1
            raise BackendUnavailable("silent")
        return super().stats(queue)


def test_a_count_that_was_not_answered_is_made_again_after_a_pause_and_not_at_its_next_turn() -> None:
    backend = SilentThrice()
    backend.enqueue(a_job())
    with Settling(backend) as thread:
        thread.until(ev.Counted)
    assert [type(event) for event in thread.told()[:2]] == [ev.BrokerSilent, ev.Counted]
    assert backend.silent == 0


class SilentReaps(MemoryBackend):
    """Two calls are not answered: a reap, and the count after it."""

    silent = 2

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        self._answer()
        return super()._reap(queue, policy, visibility_timeout)

    def stats(self, queue: str) -> QueueStats:
        self._answer()
        return super().stats(queue)

    def _answer(self) -> None:
        if self.silent:
            self.silent -= 1
            raise BackendUnavailable("silent")


def test_an_outage_is_over_soon_after_a_count_is_answered_and_not_at_the_next_turn_to_reap() -> None:
    with Settling(SilentReaps(), ttl=3600.0) as thread:
        thread.until(ev.BrokerAnswered)
    assert [type(event) for event in thread.told()] == [ev.BrokerSilent, ev.Counted, ev.BrokerAnswered]


def test_until_empty_the_counts_are_looked_at_as_soon_as_all_that_the_last_look_saw_is_settled() -> None:
    backend = MemoryBackend()
    deliveries = [held(backend) for _ in range(2)]
    with Settling(backend, until_empty=True) as thread:
        assert pending(thread) == [2]
        for delivery in deliveries:
            thread.settle((delivery, Ack()))
            thread.until_answered(delivery)
        thread.until(ev.Counted, 2)
        assert pending(thread) == [2, 0]
        # Told before the counts: the pool holds nothing when it hears of them.
        assert type(thread.told()[-2]) is ev.Answered


def test_any_other_pool_waits_for_the_next_turn_to_count() -> None:
    backend = MemoryBackend()
    deliveries = [held(backend) for _ in range(3)]
    with Settling(backend) as thread:
        for delivery in deliveries:
            thread.settle((delivery, Ack()))
            thread.until_answered(delivery)
        assert pending(thread) == [3]


def pending(thread: Settling) -> list[int]:
    """What was found by each look at the counts, of which there was one at least."""
    return [event.stats[QUEUE].pending for event in thread.until(ev.Counted)]


# --- native reap ------------------------------------------------------------------------------------


def poisoned() -> Modest:
    """A broker that buries a message when it is fetched next."""
    backend = Modest()
    backend.enqueue(a_job())
    for _ in range(2):
        [lease] = backend.fetch_many(QUEUE, limit=1, ttl=0.005)
        wait_until(lambda lease=lease: backend.clock.boot() > lease.expires_at)  # type: ignore[misc]
    backend.reap(QUEUE)
    return backend


def test_a_death_at_a_fetch_is_told_before_the_counts_that_end_the_pool() -> None:
    backend = poisoned()
    with Settling(backend, count_every=0.01) as thread:
        thread.until(ev.Counted)
        assert backend.fetch(QUEUE) is None
        wait_until(lambda: any(event.stats[QUEUE].pending == 0 for event in thread.of(ev.Counted)))
    kinds = [
        type(event)
        for event in thread.told()
        if not (isinstance(event, ev.Counted) and event.stats[QUEUE].pending)
        and not isinstance(event, ev.BrokerAnswered)
    ]
    assert kinds[0] is ev.ReapDone
    [told] = thread.of(ev.ReapDone)
    assert [(one.crashes, one.dead) for one in told.reaped] == [(2, True)]


def test_what_was_charged_since_the_last_reap_is_told_at_the_end() -> None:
    backend = poisoned()
    with Settling(backend) as thread:
        thread.until(ev.Counted)
        assert backend.fetch(QUEUE) is None
    assert [one.dead for event in thread.of(ev.ReapDone) for one in event.reaped] == [True]


class Deaf(Modest):
    """It reaps without asking its broker, which is silent."""

    reaps = 0

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        self.reaps += 1
        return super()._reap(queue, policy, visibility_timeout)

    def stats(self, queue: str) -> QueueStats:
        del queue
        raise BackendUnavailable("silent")


def test_a_reap_that_asks_nobody_is_no_sign_of_life() -> None:
    backend = Deaf()
    with Settling(backend) as thread:
        thread.until(ev.BrokerSilent)
        assert backend.reaps > 0
    assert not thread.of(ev.BrokerAnswered)


class Disconnected(Modest):
    """Its leases went with its connection, which a first settlement finds out; it refuses all later ones by itself."""

    is_known = False

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        del brought, call_id
        if not self.is_known:
            self.is_known = True
            raise BackendUnavailable("silent")
        return [Settled.NOT_IN_FLIGHT for _ in settlements]


def test_a_settlement_that_is_refused_is_no_sign_of_life() -> None:
    backend = Disconnected()
    delivery = held(backend)
    with Settling(backend) as thread:
        thread.until(ev.Counted)
        thread.settle((delivery, Ack()))
        assert thread.until_answered(delivery) == {delivery: (Ack(), Settled.NOT_IN_FLIGHT)}
    assert thread.outages() == [ev.BrokerSilent]


# --- what a settlement brings along -----------------------------------------------------------------


class Refusing(MemoryBackend):
    """It has no queue `nowhere`, keeps no '€' in an error, and has no queue at all once it is `gone`."""

    gone = False

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        if self.gone or any(message.queue == "nowhere" for messages in brought.values() for message in messages):
            raise ConfigurationError("there is no queue 'nowhere'")
        if any("€" in (getattr(settlement, "error", None) or "") for _, settlement in settlements):
            raise InvalidJob("a character cannot be kept")
        return super()._settle(settlements, brought, call_id)


NOWHERE = JobDefinition("report", {}, queue="nowhere")


def test_one_job_that_sends_to_a_queue_that_is_not_there_is_given_up_and_harms_no_other() -> None:
    backend = Refusing()
    good, bad, moved, failed, crashed = (held(backend) for _ in range(5))
    work = (
        (good, Ack()),
        (bad, Ack((NOWHERE,))),
        (moved, Move("nowhere", attempts=1)),
        (failed, Nack(5.0, "again")),
        (crashed, Move("nowhere", crashes=1, cause="killed by SIGSEGV")),
    )
    with Settling(backend, *work) as thread:
        answers = thread.until_answered(good, moved, failed, crashed)
        [refused] = thread.until(ev.FollowUpsRefused)
    assert refused.delivery is bad, "nothing of it is settled: the attempt has failed, which the loop decides about"
    assert refused.error == "there is no queue 'nowhere'"
    assert all(answer is Settled.OK for _, answer in answers.values())
    assert answers[crashed][0] == Forfeit("killed by SIGSEGV"), "it stays where it was"
    assert answers[good][0] == Ack()
    assert answers[failed][0] == Nack(5.0, "again")
    said = answers[moved][0]
    assert isinstance(said, Abandon)
    assert said.reason == "unrecoverable"
    assert "refused by the broker: there is no queue 'nowhere'" in (said.error or "")
    assert backend.count(MessageFilter(states=(State.DEAD,))) == 1


def test_one_of_many_that_is_refused_costs_the_others_few_calls() -> None:
    backend = Refusing()
    rubbish = SentJobs(Raw(b'[{"handler":"report"},7]'), ())
    *good, bad, odd = (held(backend) for _ in range(202))
    work = [(delivery, Ack()) for delivery in good]
    with Settling(backend, *work, (bad, Ack((NOWHERE,))), (odd, Ack(rubbish))) as thread:
        assert thread.until_answered(*good).keys() == {*good}
        refusals = thread.until(ev.FollowUpsRefused, 2)
    assert {refused.delivery: refused.error for refused in refusals} == {
        bad: "there is no queue 'nowhere'",
        odd: "a definition is an object with a handler",
    }
    assert len(thread.of(ev.Answered)) < 20
    assert backend.count(MessageFilter(queue=QUEUE)) == 2, "and nothing of what was refused was enqueued"


def test_a_dead_letter_whose_copy_is_refused_dies_as_it_was_to(caplog: pytest.LogCaptureFixture) -> None:
    backend = Refusing()
    delivery = held(backend)
    with Settling(backend, (delivery, Abandon("timeout", "too slow", follow_ups=(NOWHERE,)))) as thread:
        assert thread.until_answered(delivery)[delivery] == (Abandon("timeout", "too slow"), Settled.OK)
    assert "a dead letter is not forwarded" in caplog.text


def test_an_error_that_the_broker_cannot_keep_harms_no_other_job(caplog: pytest.LogCaptureFixture) -> None:
    backend = Refusing()
    good, dead, failed = (held(backend) for _ in range(3))
    work = (good, Ack()), (dead, Abandon("failed", "10 €")), (failed, Nack(5.0, "10 €"))
    with Settling(backend, *work) as thread:
        answers = thread.until_answered(good, dead, failed)
    assert answers[good] == (Ack(), Settled.OK)
    assert answers[dead] == (Abandon("failed", "a character cannot be kept"), Settled.OK)
    assert isinstance(answers[failed][0], Abandon)
    assert "a dead letter is kept without its error" in caplog.text


def test_a_broker_that_refuses_everything_ends_the_pool_with_its_own_sentence() -> None:
    backend = Refusing()
    delivery = held(backend)
    backend.gone = True
    with Settling(backend, (delivery, Ack())) as thread:
        [died] = thread.until(ev.ThreadDied)
    assert died.error == "there is no queue 'nowhere'"
    stage = Stage(workers=1).boot()
    stage.tell(died)
    assert stage.pool.fatal == "there is no queue 'nowhere'"
    assert stage.pool.is_stopping


# --- queues on different servers, one of which is silent -----------------------------------------------------------


OTHER = "mails"


class HalfSilent(MemoryBackend):
    """As a cluster without one of its masters: no call that touches `QUEUE` is answered while it is `silent`."""

    capabilities: ClassVar[Capabilities] = replace(MemoryBackend.capabilities, atomic_across_queues=False)
    silent = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []  # (call id, settlements) of those to `QUEUE`

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        ours = [lease for lease, _ in settlements if lease.queue == QUEUE]
        if ours:
            self.calls.append((call_id, len(ours)))
        if ours and self.silent:
            raise BackendUnavailable("silent")
        return super()._settle(settlements, brought, call_id)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        if queue == QUEUE:
            raise BackendUnavailable("silent")
        return super()._reap(queue, policy, visibility_timeout)


@pytest.fixture
def backend() -> HalfSilent:
    return HalfSilent()


@pytest.fixture
def thread(backend: HalfSilent) -> Iterator[Settling]:
    """It asks the silent server for nothing but settlements."""
    with Settling(backend, queues=(OTHER,)) as thread:
        yield thread
        backend.silent = False


def ack(thread: Settling, *deliveries: Delivery) -> None:
    thread.settle(*((delivery, Ack()) for delivery in deliveries))


def until_acked(thread: Settling, *deliveries: Delivery) -> None:
    answers = thread.until_answered(*deliveries)
    assert all(answers[delivery] == (Ack(), Settled.OK) for delivery in deliveries)


def test_the_settlements_of_other_queues_do_not_wait_for_the_silent_one(backend: HalfSilent, thread: Settling) -> None:
    silent, other, later = held(backend), held(backend, OTHER), held(backend, OTHER)
    ack(thread, silent, other)
    until_acked(thread, other)
    wait_until(lambda: len(backend.calls) >= 3)
    ack(thread, later)
    until_acked(thread, later)
    assert thread.outages() == [ev.BrokerSilent]
    backend.silent = False
    until_acked(thread, silent)
    thread.until(ev.BrokerAnswered)


def test_what_was_not_answered_is_called_again_under_its_id_and_what_came_later_follows_at_once(
    backend: HalfSilent, thread: Settling
) -> None:
    first, *later = [held(backend) for _ in range(3)]
    ack(thread, first)
    wait_until(lambda: len(backend.calls) >= 2)
    for delivery in later:
        ack(thread, delivery)
    tried = len(backend.calls)
    wait_until(lambda: len(backend.calls) >= tried + 2)
    assert len(set(backend.calls)) == 1, "one call a silent server, however much waits"
    backend.silent = False
    until_acked(thread, first, *later)
    assert [count for _, count in dict.fromkeys(backend.calls)] == [1, 2]


def test_a_stop_settles_what_can_be_settled_beside_a_silent_queue(backend: HalfSilent, thread: Settling) -> None:
    silent, other = held(backend), held(backend, OTHER)
    ack(thread, silent)
    wait_until(lambda: len(backend.calls) >= 2)
    thread.thread.stop()
    ack(thread, other)
    until_acked(thread, other)
    assert thread.thread.is_alive()
    backend.silent = False
    until_acked(thread, silent)
    thread.thread.join(10.0)
    assert not thread.thread.is_alive()


def test_a_settlement_whose_lease_ends_meanwhile_is_given_up(backend: HalfSilent, thread: Settling) -> None:
    silent = held(backend, ttl=0.3)
    ack(thread, silent)
    [given_up] = thread.until(ev.GivenUp)
    assert given_up.deliveries == [silent]


def test_the_other_queues_are_reaped(backend: HalfSilent) -> None:
    ended = held(backend, OTHER, ttl=0.05)
    wait_until(lambda: backend.clock.boot() > ended.lease.expires_at)
    with Settling(backend, queues=(QUEUE, OTHER)) as thread:
        [done] = thread.until(ev.ReapDone)
    assert [reaped.id for reaped in done.reaped] == [ended.lease.id]


# --- refusals: to write what needs room, or to let the pool in -----------------------------------------------------


class Full(MemoryBackend):
    """Takes no call that needs room, as a whole: only acks free some. `shut`: it refuses everything."""

    full = True
    shut = False

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        if self.shut:
            raise AccessRefused("who are you? Mend the password")
        if self.full and any(settlement != Ack() for _, settlement in settlements):
            raise WriteRefused("full")
        return super()._settle(settlements, brought, call_id)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        if self.shut:
            raise AccessRefused("who are you? Mend the password")
        return super()._renew(leases, ttl)


@pytest.fixture
def full() -> Full:
    return Full()


def test_an_ack_is_settled_by_itself_where_the_whole_call_was_refused(full: Full) -> None:
    nacked, acked, later = held(full), held(full), held(full)
    with Settling(full, (nacked, Nack()), (acked, Ack())) as thread:
        thread.until_answered(acked)
        thread.settle((later, Ack()))
        assert nacked not in thread.until_answered(later), "what comes later waits for nothing"
        assert nacked.refused_at
        full.full = False
        assert thread.until_answered(nacked)[nacked] == (Nack(), Settled.OK)
        thread.until(ev.BrokerAnswered)
    assert [event.kind for event in thread.of(ev.BrokerSilent)] == [WriteRefused], "told once"


def test_what_is_refused_until_its_lease_has_ended_is_given_up(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle_thread, "CALM_S", 0.1)
    nacked = held(full, ttl=0.3)
    with Settling(full, (nacked, Nack())) as thread:
        [given_up] = thread.until(ev.GivenUp)
        assert given_up.deliveries == [nacked]
        thread.until(ev.BrokerAnswered)  # nothing is refused any more


def test_a_lease_is_not_renewed_for_longer_than_it_lasts_while_its_settlement_is_refused(full: Full) -> None:
    refused, running = held(full, ttl=2.0), held(full, ttl=2.0)
    refused.refused_at = full.clock.mono()

    def both_go_their_way() -> bool:
        for event in renewing.of(ev.Renewed):
            for delivery, lease in event.renewals:
                delivery.lease = lease or delivery.lease
        now = full.clock.boot()
        return refused.lease.expires_at < now < running.lease.expires_at

    with Running(partial(RenewThread, full, 2.0, lambda: [refused, running])) as renewing:
        wait_until(both_go_their_way)


def test_follow_ups_are_not_blamed_while_the_broker_refuses_everything(full: Full) -> None:
    """Else a job that succeeded would be a dead letter."""
    full.full = False
    delivery = held(full)
    full.shut = True
    with Settling(full, (delivery, Ack((a_job(),)))) as thread:
        assert thread.until(ev.BrokerSilent)[0].kind is AccessRefused
        full.shut = False
        settlement, answer = thread.until_answered(delivery)[delivery]
    assert (type(settlement), answer) == (Ack, Settled.OK)
    assert not thread.of(ev.ThreadDied)
