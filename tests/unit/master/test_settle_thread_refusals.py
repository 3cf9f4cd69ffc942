"""The settle thread on a broker that answers and refuses: to write what needs room, or to let the pool in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support.jobs import QUEUE, a_job, new_lease
from support.waiting import wait_until

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import ReapPolicy
from jobpool.errors import AccessRefused, WriteRefused
from jobpool.master import events as ev
from jobpool.master import settle_thread
from jobpool.master.inbox import Inbox
from jobpool.master.settle_thread import SettleThread, Work
from jobpool.master.slots import Delivery
from jobpool.master.threads import RenewThread
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Nack, Settled
from jobpool_backends.memory import MemoryBackend


class Full(MemoryBackend):
    """Takes no call that needs room, as a whole: only acks free some. `shut`: it refuses everything."""

    full = True
    shut = False
    renewals = 0

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        if self.shut:
            raise AccessRefused("who are you? Mend the password")
        if self.full and any(settlement != Ack() for _, settlement in settlements):
            raise WriteRefused("full")
        return super()._settle(settlements, brought, call_id)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        if self.shut:
            raise AccessRefused("who are you? Mend the password")
        self.renewals += 1
        return super()._renew(leases, ttl)

    def held(self, ttl: float = 30.0) -> Delivery:
        lease = new_lease(self, ttl=ttl)
        return Delivery(lease, lease.deliveries, 0.0, "", self.clock.mono())


class Thread:
    """A settle thread, and what it has told."""

    def __init__(self, backend: Full) -> None:
        self.inbox = Inbox()
        self.told: list[ev.Event] = []
        self.settle_thread = SettleThread(backend, (QUEUE,), 30.0, ReapPolicy(), self.inbox, 3600.0)
        self.settle_thread.start()

    def of(self, kind: type[ev.Event]) -> list[Any]:
        self.told += self.inbox.take()
        return [event for event in self.told if isinstance(event, kind)]

    def settle(self, *work: Work) -> None:
        self.settle_thread.settle(list(work))

    def answers(self) -> dict[Delivery, Settled]:
        return {delivery: answer for event in self.of(ev.Answered) for delivery, _, answer in event.answers}


@pytest.fixture
def backend() -> Full:
    return Full()


@pytest.fixture
def thread(backend: Full) -> Iterator[Thread]:
    thread = Thread(backend)
    yield thread
    thread.settle_thread.stop()
    thread.settle_thread.join(10.0)
    thread.inbox.close()


def test_an_ack_is_settled_by_itself_where_the_whole_call_was_refused(backend: Full, thread: Thread) -> None:
    nacked, acked, later = backend.held(), backend.held(), backend.held()
    thread.settle((nacked, Nack()), (acked, Ack()))
    wait_until(lambda: acked in thread.answers())
    thread.settle((later, Ack()))
    wait_until(lambda: later in thread.answers(), what="what comes later waits for nothing")
    assert nacked not in thread.answers()
    assert nacked.refused_at
    backend.full = False
    wait_until(lambda: thread.answers().get(nacked) is Settled.OK)
    wait_until(lambda: thread.of(ev.BrokerAnswered))
    assert [event.kind for event in thread.of(ev.BrokerSilent)] == [WriteRefused], "told once"


def test_what_is_refused_until_its_lease_has_ended_is_given_up(
    backend: Full, thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_thread, "CALM_S", 0.1)
    nacked = backend.held(ttl=0.3)
    thread.settle((nacked, Nack()))
    wait_until(lambda: thread.of(ev.GivenUp))
    assert thread.of(ev.GivenUp)[0].deliveries == [nacked]
    wait_until(lambda: thread.of(ev.BrokerAnswered), what="nothing is refused any more")


def test_a_lease_is_not_renewed_for_longer_than_it_lasts_while_its_settlement_is_refused(backend: Full) -> None:
    inbox = Inbox()
    refused, running = backend.held(ttl=0.5), backend.held(ttl=0.5)
    refused.refused_at = backend.clock.mono()
    renew_thread = RenewThread(backend, 0.5, lambda: [refused, running], inbox)
    renew_thread.start()
    told: dict[Delivery, JobLease | None] = {}

    def both_go_their_way() -> bool:
        for event in inbox.take():
            for delivery, lease in event.renewals if isinstance(event, ev.Renewed) else ():
                told[delivery] = delivery.lease = lease or delivery.lease
        now = backend.clock.boot()
        return refused.lease.expires_at < now < running.lease.expires_at

    try:
        wait_until(both_go_their_way)
    finally:
        renew_thread.stop()
        renew_thread.join(10.0)
        inbox.close()


def test_follow_ups_are_not_blamed_while_the_broker_refuses_everything(backend: Full, thread: Thread) -> None:
    """Else a job that succeeded would be a dead letter."""
    backend.full = False
    backend.shut = True
    delivery = backend.held()
    thread.settle((delivery, Ack((a_job(),))))
    wait_until(lambda: thread.of(ev.BrokerSilent))
    assert thread.of(ev.BrokerSilent)[0].kind is AccessRefused
    backend.shut = False
    wait_until(lambda: thread.answers().get(delivery) is Settled.OK)
    [answered] = thread.of(ev.Answered)
    assert isinstance(answered.answers[0][1], Ack)
    assert not thread.of(ev.ThreadDied)
