"""The settle thread on a broker that frees leases itself, and one that refuses what a settlement brings along."""

from __future__ import annotations

import pytest
from running import Settling, held
from stage import Stage
from support.jobs import QUEUE, a_job
from support.modest import Modest
from support.waiting import wait_until

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import MessageFilter, QueueStats, Reaped, ReapPolicy, State
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob
from jobpool.master import events as ev
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Settled
from jobpool_backends.memory import MemoryBackend

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
        answers = thread.until_answered(good, bad, moved, failed, crashed)
    assert all(answer is Settled.OK for _, answer in answers.values())
    assert answers[crashed][0] == Forfeit("killed by SIGSEGV"), "it stays where it was"
    assert answers[good][0] == Ack()
    assert answers[failed][0] == Nack(5.0, "again")
    for delivery in (bad, moved):
        said = answers[delivery][0]
        assert isinstance(said, Abandon)
        assert said.reason == "unrecoverable"
        assert "refused by the broker: there is no queue 'nowhere'" in (said.error or "")
    assert backend.count(MessageFilter(states=(State.DEAD,))) == 2


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
