"""A receiver: one receiver of a queue, which fetches, waits and settles what it fetched, one thing at a time.

A wait gives way to a fetch or a settlement. Settlements go over the link that received; those of an earlier link go by
the lock's token. If an answer was lost, it is asked for once more in that way. If the lock is gone then, perhaps the
first request was carried out: that is a `Doubt`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from jobpool.errors import BackendUnavailable
from jobpool_backends.servicebus import internals
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.internals import Answer, Disposition
from jobpool_backends.servicebus.trouble import LOST

MAX_UNSETTLED = 1000
"""Deliveries never settled on their link, after which it gets another: the session has room for some 5,000."""

MAX_SETTLEMENTS = 500
"""Settlements on their way together."""


@dataclass(slots=True, eq=False)
class Delivery:
    """A message whose lock we hold.

    Attributes:
        received: `time.monotonic()` from before its lock began.
        locked_until: Unix time on the broker's clock.
        generation: Of the channel's handler.
        asked: True if it may be settled already: the broker was asked, and did not answer.
    """

    message: ServiceBusReceivedMessage
    receiver: QueueReceiver
    generation: int
    received: float
    locked_until: float | None
    asked: bool = False


class Doubt(Exception):
    """The lock is gone, and the settlement may have been what ended it."""


@dataclass(slots=True)
class _Batch:
    """Settlements on their way, and what was answered."""

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
        self.load = 0
        """Deliveries that it has and that are not settled yet, as far as we were told."""
        self._strays = 0
        self._wanted = 0
        self._nudge = asyncio.Event()

    async def take(self, most: int, deadline: float) -> list[Delivery]:
        """Return the messages of the queue now. One round trip."""
        async with _Want(self):
            return await self.channel.run(lambda receiver: self._draw(receiver, most), deadline)

    async def wait(self, deadline: float, unwanted: Callable[[], bool]) -> list[Delivery]:
        """Wait for one message, until the deadline, a nudge, or until somebody wants the receiver.

        A connection that breaks meanwhile, as they do, is replaced without a word; the next one's trouble is told.
        """
        try:
            return await self._wait_once(deadline, unwanted)
        except BackendUnavailable:
            if unwanted():
                return []
            return await self._wait_once(deadline, unwanted)

    async def _wait_once(self, deadline: float, unwanted: Callable[[], bool]) -> list[Delivery]:
        limit = deadline + self.channel.timeout
        return await self.channel.run(lambda receiver: self._wait(receiver, deadline, unwanted), limit, patiently=False)

    def nudge(self) -> None:
        """End the wait."""
        self._nudge.set()

    async def settle(
        self, dispositions: Sequence[tuple[Delivery, Disposition]], deadline: float
    ) -> list[Answer | Doubt]:
        """Return an answer each, in order. One round trip, as a rule.

        Raises JobpoolError: not all were answered by the deadline; `settle` again is safe.
        """
        batch = _Batch(dispositions)
        self.load -= len(dispositions)
        async with _Want(self):
            try:
                await self.channel.run(lambda receiver: self._settle(receiver, batch), deadline)
            except BaseException:
                self.load += len(batch.open)
                if not batch.answers:
                    raise
                for place in batch.open:
                    batch.answers[place] = TimeoutError("the broker did not say what became of the message")
        return [batch.answers[place] for place in range(len(dispositions))]

    def forget(self, deliveries: int) -> None:
        """Count deliveries that will never be settled."""
        self.load -= deliveries
        self._strays += deliveries

    async def _draw(self, receiver: ServiceBusReceiver, most: int) -> list[Delivery]:
        if self._strays > MAX_UNSETTLED:
            self._strays = 0
            raise ConnectionResetError("too many deliveries were never settled: the receiver is replaced")
        before = time.monotonic()
        try:
            messages = await internals.draw(receiver, most)
        except Exception:
            messages = internals.received_before_break(receiver)
            if not messages:
                raise
            self.channel.recycle()
        return self._deliveries(messages, before)

    async def _wait(
        self, receiver: ServiceBusReceiver, deadline: float, unwanted: Callable[[], bool]
    ) -> list[Delivery]:
        self._nudge.clear()
        if self._wanted or unwanted():
            return []
        before = time.monotonic()
        try:
            messages, before = await internals.wait(receiver, self._nudge, max(0.0, deadline - before))
        except Exception:
            messages = internals.received_before_break(receiver)
            if not messages:
                raise
            self.channel.recycle()
        return self._deliveries(messages, before)

    def _deliveries(self, messages: Sequence[ServiceBusReceivedMessage], before: float) -> list[Delivery]:
        self.load += len(messages)
        generation = self.channel.generation
        return [Delivery(each, self, generation, before, internals.pop_lock_end(each)) for each in messages]

    async def _settle(self, receiver: ServiceBusReceiver, batch: _Batch) -> None:
        here, elsewhere = self._split(receiver, batch)
        for start in range(0, len(here), MAX_SETTLEMENTS):
            await self._settle_here(receiver, batch, here[start : start + MAX_SETTLEMENTS])
        for place in elsewhere:
            await self._settle_by_token(receiver, batch, place)

    def _split(self, receiver: ServiceBusReceiver, batch: _Batch) -> tuple[list[int], list[int]]:
        here: list[int] = []
        elsewhere: list[int] = []
        for place in batch.open:
            delivery = batch.dispositions[place][0]
            fits = delivery.generation == self.channel.generation and internals.settles_here(receiver, delivery.message)
            (here if fits else elsewhere).append(place)
        return here, elsewhere

    async def _settle_here(self, receiver: ServiceBusReceiver, batch: _Batch, places: Sequence[int]) -> None:
        part = [batch.dispositions[place] for place in places]
        before = [delivery.asked for delivery, _ in part]
        for delivery, _ in part:
            delivery.asked = True
        answers = await internals.settle(receiver, [(delivery.message, disposition) for delivery, disposition in part])
        for place, asked, answer in zip(places, before, answers, strict=True):
            if answer is None or isinstance(answer, LOST):
                batch.dispositions[place][0].asked = asked
                batch.answer(place, answer)
        if any(place not in batch.answers for place in places):
            raise TimeoutError("the broker did not say what became of a message")

    async def _settle_by_token(self, receiver: ServiceBusReceiver, batch: _Batch, place: int) -> None:
        delivery, disposition = batch.dispositions[place]
        self.channel.count(1)
        try:
            await internals.settle_by_token(receiver, delivery.message, disposition)
        except LOST as error:
            batch.answer(place, error)
        except BaseException:
            delivery.asked = True
            raise
        else:
            batch.answer(place, None)


class _Want:
    """While it lasts, somebody wants the receiver for something else than waiting."""

    def __init__(self, receiver: QueueReceiver) -> None:
        self._receiver = receiver

    async def __aenter__(self) -> None:
        self._receiver._wanted += 1
        self._receiver._nudge.set()

    async def __aexit__(self, *about: object) -> None:
        self._receiver._wanted -= 1
