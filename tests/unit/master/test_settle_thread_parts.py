"""The settle thread on a broker whose queues are on different servers, one of which is silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from msgspec.structs import replace
from running import Settling, held
from support.jobs import QUEUE
from support.waiting import wait_until

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import Capabilities, Reaped, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.slots import Delivery
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.memory import MemoryBackend

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
