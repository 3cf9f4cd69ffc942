"""The settle thread on a broker whose queues are on different servers, one of which is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

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


class HalfSilent(MemoryBackend):
    """As a cluster without one of its masters: no call that touches `QUEUE` is answered."""

    capabilities: ClassVar[Capabilities] = replace(MemoryBackend.capabilities, atomic_across_queues=False)

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        if any(lease.queue == QUEUE for lease, _ in settlements):
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


@pytest.fixture
def until(backend: HalfSilent) -> Iterator[Callable[[type[ev.Event], list[Delivery]], ev.Event]]:
    """Starts the thread with acks of these deliveries, and waits for the first event of a kind."""
    inbox = Inbox()
    settle_thread = SettleThread(backend, (QUEUE, OTHER), 30.0, ReapPolicy(), inbox, 3600.0)

    def first(kind: type[ev.Event], deliveries: list[Delivery]) -> ev.Event:
        settle_thread.settle([(delivery, Ack()) for delivery in deliveries])
        settle_thread.start()
        found: list[ev.Event] = []
        wait_until(lambda: found.extend(e for e in inbox.take() if isinstance(e, kind)) or bool(found))
        return found[0]

    yield first
    settle_thread.stop()
    settle_thread.join(10.0)
    inbox.close()


def test_the_settlements_of_other_queues_do_not_wait_for_the_silent_one(
    backend: HalfSilent, until: Callable[[type[ev.Event], list[Delivery]], ev.Event]
) -> None:
    silent, other = backend.held(QUEUE, ttl=1.0), backend.held(OTHER)
    answered = until(ev.Answered, [silent, other])
    assert isinstance(answered, ev.Answered)
    assert [(delivery, answer) for delivery, _, answer in answered.answers] == [(other, Settled.OK)]


def test_the_other_queues_are_reaped(
    backend: HalfSilent, until: Callable[[type[ev.Event], list[Delivery]], ev.Event]
) -> None:
    ended = backend.held(OTHER, ttl=0.05)
    wait_until(lambda: backend.clock.boot() > ended.lease.expires_at)
    done = until(ev.ReapDone, [])
    assert isinstance(done, ev.ReapDone)
    assert [reaped.id for reaped in done.reaped] == [ended.lease.id]
