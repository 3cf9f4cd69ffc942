"""A thread of the master that runs beside a test, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar

from support.jobs import QUEUE, new_lease
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy
from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.settle_thread import SettleThread, Work
from jobpool.master.slots import Delivery
from jobpool.master.threads import MasterThread
from jobpool.message.settlement import Settled, Settlement

T = TypeVar("T", bound=MasterThread)
E = TypeVar("E", bound=ev.Event)


def held(backend: QueueBackend, queue: str = QUEUE, ttl: float = 30.0) -> Delivery:
    """A new job's delivery, leased now."""
    lease = new_lease(backend, queue=queue, ttl=ttl)
    return Delivery(lease, lease.deliveries, 0.0, "", backend.clock.mono())


class Running(Generic[T]):
    """The thread that `make` makes for an inbox: it runs within the block, and has ended after it."""

    def __init__(self, make: Callable[[Inbox], T]) -> None:
        self._inbox = Inbox()
        self._told: list[ev.Event] = []
        self._has_ended = False
        self.thread = make(self._inbox)

    def told(self) -> list[ev.Event]:
        """All that it has told, also after the block."""
        self._told += [] if self._has_ended else self._inbox.take()
        return self._told

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.told() if isinstance(event, kind)]

    def until(self, kind: type[E], count: int = 1) -> list[E]:
        """Wait for so many events of a kind; return all of that kind."""
        wait_until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)

    def outages(self) -> list[type[ev.Event]]:
        """What it told of the broker, in order."""
        return [type(event) for event in self.told() if isinstance(event, ev.BrokerSilent | ev.BrokerAnswered)]

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.stop()
        self.thread.join(10.0)
        self.told()
        self._has_ended = True
        self._inbox.close()
        assert not self.thread.is_alive()


class Settling(Running[SettleThread]):
    """A settle thread that has these to settle at first, and counts once unless told otherwise."""

    def __init__(
        self,
        backend: QueueBackend,
        *work: Work,
        queues: tuple[str, ...] = (QUEUE,),
        ttl: float = 30.0,
        count_every: float = 3600.0,
        until_empty: bool = False,
    ) -> None:
        policy = ReapPolicy(max_crashes=1)
        super().__init__(
            lambda inbox: SettleThread(backend, queues, ttl, policy, inbox, count_every, until_empty=until_empty)
        )
        self.settle(*work)

    def settle(self, *work: Work) -> None:
        self.thread.settle(list(work))

    def answers(self) -> dict[Delivery, tuple[Settlement, Settled]]:
        """What was made of each that was answered."""
        return {d: (settlement, answer) for event in self.of(ev.Answered) for d, settlement, answer in event.answers}

    def until_answered(self, *deliveries: Delivery) -> dict[Delivery, tuple[Settlement, Settled]]:
        wait_until(lambda: self.answers().keys() >= set(deliveries) or self.of(ev.ThreadDied))
        return self.answers()
