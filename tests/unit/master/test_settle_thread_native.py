"""The settle thread on a broker that frees leases itself, and one that refuses what a settlement brings along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stage import Stage
from support.jobs import QUEUE, a_job
from support.modest import Modest
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import MessageFilter, QueueStats, Reaped, ReapPolicy, State
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob
from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.settle_thread import SettleThread, Work
from jobpool.master.slots import Delivery
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Settled, Settlement
from jobpool_backends.memory import MemoryBackend


class Thread:
    """A settle thread, and what it has told."""

    def __init__(self, backend: QueueBackend, count_every: float = 3600.0) -> None:
        self.backend = backend
        self.inbox = Inbox()
        self.told: list[ev.Event] = []
        self._ended = False
        self.settle_thread = SettleThread(backend, (QUEUE,), 30.0, ReapPolicy(max_crashes=1), self.inbox, count_every)

    def held(self) -> Delivery:
        self.backend.enqueue(a_job())
        [lease] = self.backend.fetch_many(QUEUE, limit=1)
        return Delivery(lease, lease.deliveries, 0.0, "", 0.0)

    def start(self, *work: Work) -> None:
        self.settle_thread.settle(list(work))
        self.settle_thread.start()

    def of(self, kind: type[ev.Event]) -> list[Any]:
        self.told += self.inbox.take()
        return [event for event in self.told if isinstance(event, kind)]

    def wait_for(self, kind: type[ev.Event], count: int = 1) -> list[Any]:
        return wait_until(lambda: found if len(found := self.of(kind)) >= count else None) or []

    def answers(self, count: int) -> list[tuple[Delivery, Settlement, Settled]]:
        def all_of_them() -> list[tuple[Delivery, Settlement, Settled]]:
            return [answer for event in self.of(ev.Answered) for answer in event.answers]

        wait_until(lambda: len(all_of_them()) >= count or self.of(ev.ThreadDied))
        return all_of_them()

    def end(self) -> None:
        """Safe to call twice."""
        if not self._ended:
            self._ended = True
            self.settle_thread.stop()
            self.settle_thread.join(10.0)
            self.told += self.inbox.take()
            self.inbox.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Thread]]:
    threads: list[Thread] = []

    def make(backend: QueueBackend, **options: Any) -> Thread:
        threads.append(Thread(backend, **options))
        return threads[-1]

    yield make
    for thread in threads:
        thread.end()


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


def test_a_death_at_a_fetch_is_told_before_the_counts_that_end_the_pool(run: Callable[..., Thread]) -> None:
    backend = poisoned()
    thread = run(backend, count_every=0.01)
    thread.start()
    wait_until(lambda: thread.of(ev.Counted))
    assert backend.fetch(QUEUE) is None
    wait_until(lambda: any(event.stats[QUEUE].pending == 0 for event in thread.of(ev.Counted)))
    thread.end()
    kinds = [
        type(event)
        for event in thread.told
        if not (isinstance(event, ev.Counted) and event.stats[QUEUE].pending)
        and not isinstance(event, ev.BrokerAnswered)
    ]
    assert kinds[0] is ev.ReapDone
    [told] = [event for event in thread.told if isinstance(event, ev.ReapDone)]
    assert [(one.crashes, one.dead) for one in told.reaped] == [(2, True)]


def test_what_was_charged_since_the_last_reap_is_told_at_the_end(run: Callable[..., Thread]) -> None:
    backend = poisoned()
    thread = run(backend)
    thread.start()
    thread.wait_for(ev.Counted)
    assert backend.fetch(QUEUE) is None
    thread.end()
    assert [one.dead for event in thread.told if isinstance(event, ev.ReapDone) for one in event.reaped] == [True]


class Deaf(Modest):
    """It reaps without asking its broker, which is silent."""

    reaps = 0

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        self.reaps += 1
        return super()._reap(queue, policy, visibility_timeout)

    def stats(self, queue: str) -> QueueStats:
        del queue
        raise BackendUnavailable("silent")


def test_a_reap_that_asks_nobody_is_no_sign_of_life(run: Callable[..., Thread]) -> None:
    backend = Deaf()
    thread = run(backend)
    thread.start()
    wait_until(lambda: thread.of(ev.BrokerSilent))
    assert backend.reaps > 0
    thread.end()
    assert not any(isinstance(event, ev.BrokerAnswered) for event in thread.told)


class Disconnected(Modest):
    """Its leases went with its connection, which a first settlement finds out; it refuses all later ones by itself."""

    is_known = False

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        del brought, call_id
        if not self.is_known:
            self.is_known = True
            raise BackendUnavailable("silent")
        return [Settled.NOT_IN_FLIGHT for _ in settlements]


def test_a_settlement_that_is_refused_is_no_sign_of_life(run: Callable[..., Thread]) -> None:
    thread = run(Disconnected())
    delivery = thread.held()
    thread.start()
    thread.wait_for(ev.Counted)
    thread.settle_thread.settle([(delivery, Ack())])
    assert [answer for _, _, answer in thread.answers(1)] == [Settled.NOT_IN_FLIGHT]
    thread.end()
    outages = ev.BrokerSilent | ev.BrokerAnswered
    assert [type(event) for event in thread.told if isinstance(event, outages)] == [ev.BrokerSilent]


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


def test_one_job_that_sends_to_a_queue_that_is_not_there_is_given_up_and_harms_no_other(
    run: Callable[..., Thread],
) -> None:
    thread = run(Refusing())
    good, bad, moved, failed, crashed = (thread.held() for _ in range(5))
    thread.start(
        (good, Ack()),
        (bad, Ack((NOWHERE,))),
        (moved, Move("nowhere", attempts=1)),
        (failed, Nack(5.0, "again")),
        (crashed, Move("nowhere", crashes=1, cause="killed by SIGSEGV")),
    )
    answers = {delivery: (settlement, answer) for delivery, settlement, answer in thread.answers(5)}
    assert all(answers[delivery][1] is Settled.OK for delivery in (good, bad, moved, failed, crashed))
    assert answers[crashed][0] == Forfeit("killed by SIGSEGV"), "it stays where it was"
    assert answers[good][0] == Ack()
    assert answers[failed][0] == Nack(5.0, "again")
    for delivery in (bad, moved):
        said = answers[delivery][0]
        assert isinstance(said, Abandon)
        assert said.reason == "unrecoverable"
        assert "refused by the broker: there is no queue 'nowhere'" in (said.error or "")
    assert thread.backend.count(MessageFilter(states=(State.DEAD,))) == 2


def test_a_dead_letter_whose_copy_is_refused_dies_as_it_was_to(
    run: Callable[..., Thread], caplog: pytest.LogCaptureFixture
) -> None:
    thread = run(Refusing())
    thread.start((thread.held(), Abandon("timeout", "too slow", follow_ups=(NOWHERE,))))
    [(_, settlement, answer)] = thread.answers(1)
    assert (settlement, answer) == (Abandon("timeout", "too slow"), Settled.OK)
    assert "a dead letter is not forwarded" in caplog.text


def test_an_error_that_the_broker_cannot_keep_harms_no_other_job(
    run: Callable[..., Thread], caplog: pytest.LogCaptureFixture
) -> None:
    thread = run(Refusing())
    good, dead, failed = (thread.held() for _ in range(3))
    thread.start((good, Ack()), (dead, Abandon("failed", "10 €")), (failed, Nack(5.0, "10 €")))
    answers = {delivery: (settlement, answer) for delivery, settlement, answer in thread.answers(3)}
    assert answers[good] == (Ack(), Settled.OK)
    assert answers[dead] == (Abandon("failed", "a character cannot be kept"), Settled.OK)
    assert isinstance(answers[failed][0], Abandon)
    assert "a dead letter is kept without its error" in caplog.text


def test_a_broker_that_refuses_everything_ends_the_pool_with_its_own_sentence(run: Callable[..., Thread]) -> None:
    backend = Refusing()
    thread = run(backend)
    delivery = thread.held()
    backend.gone = True
    thread.start((delivery, Ack()))
    thread.wait_for(ev.ThreadDied)
    [died] = thread.of(ev.ThreadDied)
    assert died.error == "there is no queue 'nowhere'"
    stage = Stage(workers=1).boot()
    stage.tell(died)
    assert stage.pool.fatal == "there is no queue 'nowhere'"
    assert stage.pool.is_stopping
