"""One receiver of a queue, which fetches, waits and settles what it fetched, one thing at a time.

A wait gives way to a fetch or a settlement. Settlements go over the link that received; those of an earlier link go by
the lock's token. If an answer was lost, it is asked for once more in that way. If the lock is gone then, perhaps the
first request was carried out: that is a `Doubt`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from jobpool.errors import BackendUnavailable
from jobpool_backends.servicebus import internals
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.errors import LOST
from jobpool_backends.servicebus.internals import Answer, Disposition

MAX_UNSETTLED = 1000
"""Deliveries never settled on their link, after which it gets another: the session has room for some 5,000."""

MAX_SETTLEMENTS = 500
NO_ANSWER = "the broker did not say what became of the message"


@dataclass(slots=True, eq=False)
class Delivery:
    """A message whose lock we hold."""

    message: ServiceBusReceivedMessage
    receiver: QueueReceiver
    generation: int  # of the channel's handler
    received: float  # `time.monotonic()` from before its lock began
    locked_until: float | None  # Unix time on the broker's clock
    asked: bool = False  # True if it may be settled already: the broker was asked, and did not answer


class Doubt(Exception):
    """The lock is gone, and the settlement may have been what ended it."""


@dataclass(slots=True)
class _Batch:
    """Settlements on their way, and their answers by place."""

    dispositions: Sequence[tuple[Delivery, Disposition]]
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def open(self) -> list[int]:
        return [place for place in range(len(self.dispositions)) if place not in self.answers]

    def answer(self, place: int, answer: Answer) -> None:
        doubtful = isinstance(answer, LOST) and self.dispositions[place][0].asked
        self.answers[place] = Doubt() if doubtful else answer


class QueueReceiver:
    """One receiver of a queue. Only on the namespace's loop."""

    def __init__(self, channel: Channel[ServiceBusReceiver]) -> None:
        self.channel = channel
        self.load = 0  # deliveries that it has and that are not settled yet, as far as we were told
        self._forgotten = 0
        self._wanted = 0
        self._stop_waiting = asyncio.Event()

    async def take(self, most: int, deadline: float) -> list[Delivery]:
        """Return the messages of the queue now. One round trip."""

        async def work(receiver: ServiceBusReceiver) -> list[Delivery]:
            if self._forgotten > MAX_UNSETTLED:
                self._forgotten = 0
                raise ConnectionResetError("too many deliveries were never settled: the receiver is replaced")
            return await self._receive(receiver, internals.receive_now(receiver, most))

        with self._wants():
            return await self.channel.run(work, deadline)

    async def wait(self, deadline: float, unwanted: Callable[[], bool]) -> list[Delivery]:
        """Wait for one message, until the deadline, `stop_waiting`, or until somebody wants the receiver.

        A connection that breaks meanwhile, as they do, is replaced without a word; the next one's trouble is told.
        """

        async def work(receiver: ServiceBusReceiver) -> list[Delivery]:
            self._stop_waiting.clear()
            if self._wanted or unwanted():
                return []
            left = max(0.0, deadline - time.monotonic())
            return await self._receive(receiver, internals.receive_one(receiver, self._stop_waiting, left))

        limit = deadline + self.channel.timeout
        try:
            return await self.channel.run(work, limit, patiently=False)
        except BackendUnavailable:
            return [] if unwanted() else await self.channel.run(work, limit, patiently=False)

    def stop_waiting(self) -> None:
        """End the wait."""
        self._stop_waiting.set()

    async def settle(
        self, dispositions: Sequence[tuple[Delivery, Disposition]], deadline: float
    ) -> list[Answer | Doubt]:
        """Return an answer each, in order. One round trip, as a rule.

        Raises JobpoolError: not all were answered by the deadline; `settle` again is safe.
        """
        batch = _Batch(dispositions)
        self.load -= len(dispositions)
        with self._wants():
            try:
                await self.channel.run(lambda receiver: self._settle(receiver, batch), deadline)
            except BaseException:  # also its cancelling at the deadline: what was answered before is told
                self.load += len(batch.open)
                if not batch.answers:
                    raise
                batch.answers |= {place: TimeoutError(NO_ANSWER) for place in batch.open}
        return [batch.answers[place] for place in range(len(dispositions))]

    def forget(self, deliveries: int) -> None:
        """Count deliveries that will never be settled."""
        self.load -= deliveries
        self._forgotten += deliveries

    @contextmanager
    def _wants(self) -> Iterator[None]:
        """Ask the wait to give way, for as long as the block lasts."""
        self._wanted += 1
        self._stop_waiting.set()
        try:
            yield
        finally:
            self._wanted -= 1

    async def _receive(
        self, receiver: ServiceBusReceiver, receiving: Awaitable[tuple[Sequence[ServiceBusReceivedMessage], float]]
    ) -> list[Delivery]:
        """Return the deliveries, also when their connection broke after they had come."""
        before = time.monotonic()
        try:
            messages, before = await receiving
        except Exception:
            messages = internals.take_buffered(receiver)
            if not messages:
                raise
            self.channel.recycle()
        self.load += len(messages)
        generation = self.channel.generation
        return [Delivery(each, self, generation, before, internals.pop_lock_end(each)) for each in messages]

    async def _settle(self, receiver: ServiceBusReceiver, batch: _Batch) -> None:
        here: list[int] = []
        elsewhere: list[int] = []
        for place in batch.open:
            delivery = batch.dispositions[place][0]
            is_here = delivery.generation == self.channel.generation
            is_here = is_here and internals.settles_here(receiver, delivery.message)
            (here if is_here else elsewhere).append(place)
        for start in range(0, len(here), MAX_SETTLEMENTS):
            await self._settle_here(receiver, batch, here[start : start + MAX_SETTLEMENTS])
        for place in elsewhere:
            await self._settle_by_token(receiver, batch, place)

    async def _settle_here(self, receiver: ServiceBusReceiver, batch: _Batch, places: Sequence[int]) -> None:
        part = [batch.dispositions[place] for place in places]
        before = [delivery.asked for delivery, _ in part]
        for delivery, _ in part:
            delivery.asked = True
        answers = await internals.settle(receiver, [(delivery.message, order) for delivery, order in part])
        for place, asked, answer in zip(places, before, answers, strict=True):
            if answer is None or isinstance(answer, LOST):
                batch.dispositions[place][0].asked = asked
                batch.answer(place, answer)
        if any(place not in batch.answers for place in places):
            raise TimeoutError(NO_ANSWER)

    async def _settle_by_token(self, receiver: ServiceBusReceiver, batch: _Batch, place: int) -> None:
        delivery, order = batch.dispositions[place]
        self.channel.count(1)
        try:
            match order.kind:
                case "accepted":
                    await receiver.complete_message(delivery.message)
                case "rejected":
                    await receiver.dead_letter_message(delivery.message, order.reason, order.description)
                case _:
                    await receiver.abandon_message(delivery.message)
        except LOST as error:
            batch.answer(place, error)
        except BaseException:  # also a cancelling: the broker may have carried it out
            delivery.asked = True
            raise
        else:
            batch.answer(place, None)
