"""The settle thread on a broker whose queues are on different servers, one of which is silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import ClassVar, TypeVar

import pytest
from msgspec.structs import replace
from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import Capabilities, Reaped, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.settle_thread import SettleThread
from jobpool.master.slots import Delivery
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.memory import MemoryBackend

OTHER = "mails"
E = TypeVar("E", bound=ev.Event)


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

    def held(self, queue: str, ttl: float = 30.0) -> Delivery:
        self.enqueue(a_job(queue=queue))
        [lease] = self.fetch_many(queue, limit=1, ttl=ttl)
        return Delivery(lease, lease.deliveries, 0.0, "", 0.0)


@pytest.fixture
def backend() -> HalfSilent:
    return HalfSilent()


class Desk:
    """A settle thread that runs, and what it has told."""

    def __init__(self, backend: HalfSilent, *queues: str) -> None:
        self.inbox = Inbox()
        self.settle_thread = SettleThread(backend, queues, 30.0, ReapPolicy(), self.inbox, 3600.0)
        self.settle_thread.start()
        self.told: list[ev.Event] = []

    def close(self) -> None:
        self.settle_thread.stop()
        self.settle_thread.join(10.0)
        self.inbox.close()

    def ack(self, *deliveries: Delivery) -> None:
        self.settle_thread.settle([(delivery, Ack()) for delivery in deliveries])

    def until(self, kind: type[E]) -> list[E]:
        """Wait for an event of a kind; return all of that kind."""
        wait_until(lambda: self._of(kind))
        return self._of(kind)

    def until_acked(self, *deliveries: Delivery) -> None:
        def acked() -> list[tuple[Delivery, Settled]]:
            return [(delivery, answer) for event in self._of(ev.Answered) for delivery, _, answer in event.answers]

        wait_until(lambda: all((delivery, Settled.OK) in acked() for delivery in deliveries))

    def _of(self, kind: type[E]) -> list[E]:
        self.told += self.inbox.take()
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture
def desk(backend: HalfSilent) -> Iterator[Desk]:
    """It asks the silent server for nothing but settlements."""
    with closing(Desk(backend, OTHER)) as desk:
        yield desk
        backend.silent = False


def test_the_settlements_of_other_queues_do_not_wait_for_the_silent_one(backend: HalfSilent, desk: Desk) -> None:
    silent, other, later = backend.held(QUEUE), backend.held(OTHER), backend.held(OTHER)
    desk.ack(silent, other)
    desk.until_acked(other)
    wait_until(lambda: len(backend.calls) >= 3)
    desk.ack(later)
    desk.until_acked(later)
    outages = ev.BrokerSilent | ev.BrokerAnswered
    assert [type(event) for event in desk.told if isinstance(event, outages)] == [ev.BrokerSilent]
    backend.silent = False
    desk.until_acked(silent)
    desk.until(ev.BrokerAnswered)


def test_what_was_not_answered_is_called_again_under_its_id_and_what_came_later_follows_at_once(
    backend: HalfSilent, desk: Desk
) -> None:
    first, *later = [backend.held(QUEUE) for _ in range(3)]
    desk.ack(first)
    wait_until(lambda: len(backend.calls) >= 2)
    for delivery in later:
        desk.ack(delivery)
    tried = len(backend.calls)
    wait_until(lambda: len(backend.calls) >= tried + 2)
    assert len(set(backend.calls)) == 1, "one call a silent server, however much waits"
    backend.silent = False
    desk.until_acked(first, *later)
    assert [count for _, count in dict.fromkeys(backend.calls)] == [1, 2]


def test_a_stop_settles_what_can_be_settled_beside_a_silent_queue(backend: HalfSilent, desk: Desk) -> None:
    silent, other = backend.held(QUEUE), backend.held(OTHER)
    desk.ack(silent)
    wait_until(lambda: len(backend.calls) >= 2)
    desk.settle_thread.stop()
    desk.ack(other)
    desk.until_acked(other)
    assert desk.settle_thread.is_alive()
    backend.silent = False
    desk.until_acked(silent)
    desk.settle_thread.join(10.0)
    assert not desk.settle_thread.is_alive()


def test_a_settlement_whose_lease_ends_meanwhile_is_given_up(backend: HalfSilent, desk: Desk) -> None:
    silent = backend.held(QUEUE, ttl=0.3)
    desk.ack(silent)
    [given_up] = desk.until(ev.GivenUp)
    assert given_up.deliveries == [silent]


def test_the_other_queues_are_reaped(backend: HalfSilent) -> None:
    ended = backend.held(OTHER, ttl=0.05)
    wait_until(lambda: backend.clock.boot() > ended.lease.expires_at)
    with closing(Desk(backend, QUEUE, OTHER)) as desk:
        [done] = desk.until(ev.ReapDone)
    assert [reaped.id for reaped in done.reaped] == [ended.lease.id]
