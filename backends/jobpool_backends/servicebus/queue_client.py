"""All channels of one queue, the receivers among them, and the messages that were received while waiting.

Three connections for each queue, opened when they are needed. One sends, one (or more) fetches and settles, one renews
and peeks, and is never given credit. A fourth, for the dead letters, is opened once somebody counts or looks at them.

A receiver fetches, waits and settles what it fetched, one thing at a time; a wait gives way to the others. Settlements
go over the link that received; those of an earlier link go by the lock's token. If an answer was lost, it is asked for
once more in that way. If the lock is gone then, perhaps the first request was carried out: that is `SettlementUnknown`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from msgspec import Struct

from jobpool.errors import BackendUnavailable
from jobpool_backends.servicebus import internals
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.errors import LOST
from jobpool_backends.servicebus.internals import RELEASE, Answer, Disposition, log
from jobpool_backends.shared import pieces

# Deliveries never settled on their link, after which it gets another: the session has room for some 5,000.
MAX_UNSETTLED = 1000
MAX_SETTLEMENTS = 500
PREFETCH_KEPT_S = 1.0  # time that a message which came while somebody waited is kept for the fetch that follows
GIVE_BACK_LIMIT_S = 3.0  # time to give such messages back; their locks run out in any case

_HANDLER: dict[str, Any] = {"timeout": 5, "socket_timeout": 0.2}
_NO_ANSWER = "the broker did not say what became of the message"


class Delivery(Struct, eq=False):
    """A message whose lock we hold."""

    message: ServiceBusReceivedMessage
    receiver: QueueReceiver
    generation: int  # of the channel's handler
    received: float  # `time.monotonic()` from before its lock began
    locked_until: float | None  # Unix time on the broker's clock
    asked: bool = False  # True if it may be settled already: the broker was asked, and did not answer


class SettlementUnknown(Exception):
    """The lock is gone, and the settlement may have been what ended it."""


class _PendingSettlement(Struct):
    """A settlement on its way, and its answer."""

    delivery: Delivery
    disposition: Disposition
    answer: Answer | SettlementUnknown = None
    is_open: bool = True

    def note(self, answer: Answer) -> None:
        self.answer = SettlementUnknown() if isinstance(answer, LOST) and self.delivery.asked else answer
        self.is_open = False


class QueueReceiver:
    """One receiver of a queue. Only on the namespace's loop."""

    def __init__(self, channel: Channel[ServiceBusReceiver]) -> None:
        self.channel = channel
        self.load = 0  # deliveries that it has and that are not settled yet, as far as we were told
        self._forgotten = 0
        self._wanted = 0
        self.stop_waiting = asyncio.Event()  # when set, the wait, if there is one, ends

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
            self.stop_waiting.clear()
            if self._wanted or unwanted():
                return []
            left = max(0.0, deadline - time.monotonic())
            return await self._receive(receiver, internals.receive_one(receiver, self.stop_waiting, left))

        limit = deadline + self.channel.address.timeout
        try:
            return await self.channel.run(work, limit, patiently=False)
        except BackendUnavailable:
            return [] if unwanted() else await self.channel.run(work, limit, patiently=False)

    async def settle(
        self, dispositions: Sequence[tuple[Delivery, Disposition]], deadline: float
    ) -> list[Answer | SettlementUnknown]:
        """Return an answer each, in order. Raises JobpoolError: not all were answered; `settle` again is safe."""
        orders = [_PendingSettlement(*each) for each in dispositions]
        self.load -= len(orders)
        with self._wants():
            try:
                await self.channel.run(lambda receiver: self._settle(receiver, orders), deadline)
            except BaseException:  # also its cancelling at the deadline: earlier answers are returned
                unanswered = [order for order in orders if order.is_open]
                self.load += len(unanswered)
                if len(unanswered) == len(orders):
                    raise
                for order in unanswered:
                    order.answer = TimeoutError(_NO_ANSWER)
        return [order.answer for order in orders]

    def forget(self, deliveries: int) -> None:
        """Count deliveries that will never be settled."""
        self.load -= deliveries
        self._forgotten += deliveries

    @contextmanager
    def _wants(self) -> Iterator[None]:
        """Ask the wait to give way, for as long as the block lasts."""
        self._wanted += 1
        self.stop_waiting.set()
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

    async def _settle(self, receiver: ServiceBusReceiver, orders: Sequence[_PendingSettlement]) -> None:
        here: list[_PendingSettlement] = []
        elsewhere: list[_PendingSettlement] = []
        for order in orders:
            if order.is_open:
                is_here = order.delivery.generation == self.channel.generation
                is_here = is_here and internals.settles_here(receiver, order.delivery.message)
                (here if is_here else elsewhere).append(order)
        for piece in pieces(here, MAX_SETTLEMENTS):
            await self._settle_here(receiver, piece)
        for order in elsewhere:
            await self._settle_by_token(receiver, order)

    async def _settle_here(self, receiver: ServiceBusReceiver, orders: Sequence[_PendingSettlement]) -> None:
        before = [order.delivery.asked for order in orders]
        for order in orders:
            order.delivery.asked = True
        answers = await internals.settle(receiver, [(order.delivery.message, order.disposition) for order in orders])
        for order, asked, answer in zip(orders, before, answers, strict=True):
            if answer is None or isinstance(answer, LOST):
                order.delivery.asked = asked
                order.note(answer)
        if any(order.is_open for order in orders):
            raise TimeoutError(_NO_ANSWER)

    async def _settle_by_token(self, receiver: ServiceBusReceiver, order: _PendingSettlement) -> None:
        message, disposition = order.delivery.message, order.disposition
        self.channel.operations += 1
        try:
            match disposition.kind:
                case "accepted":
                    await receiver.complete_message(message)
                case "rejected":
                    await receiver.dead_letter_message(message, disposition.reason, disposition.description)
                case _:
                    await receiver.abandon_message(message)
        except LOST as error:
            order.note(error)
        except BaseException:  # also a cancelling: the broker may have carried it out
            order.delivery.asked = True
            raise
        else:
            order.note(None)


class QueueClient:
    """The channels of one queue. All but the constructor only on the namespace's loop."""

    def __init__(self, name: str, address: Address, client: ServiceBusClient) -> None:
        self.name = name
        self.address = address
        receiver = partial(client.get_queue_receiver, name, **_HANDLER)
        sender = partial(client.get_queue_sender, name, **_HANDLER)
        dead = partial(receiver, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        self.sending: Channel[ServiceBusSender] = Channel(sender, address, name, most=10**9)
        self.management: Channel[ServiceBusReceiver] = Channel(receiver, address, name)
        self.dead: Channel[ServiceBusReceiver] = Channel(dead, address, name)
        self.receivers = [QueueReceiver(Channel(receiver, address, name, most=10**9)) for _ in range(address.receivers)]
        self._kept: deque[Delivery] = deque()
        self._giving_back: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def take(self, most: int, deadline: float) -> list[Delivery]:
        """Return the messages of the queue now, `most` at most; first those that came during a wait. One round trip."""
        taken = [self._kept.popleft() for _ in range(min(most, len(self._kept)))]
        if len(taken) == most:
            return taken
        try:
            return taken + await self._least_loaded().take(most - len(taken), deadline)
        except BaseException:
            self.keep(taken)
            raise

    async def wait(self, deadline: float, unwanted: Callable[[], bool]) -> bool:
        """Wait until there is something to take, until `deadline`, or until somebody else needs the receiver.

        One at a time. `unwanted` tells, each time that it could go on, whether nobody waits for it any more.
        """
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._turn.acquire()
        except TimeoutError:
            return bool(self._kept)
        try:
            if not (self._kept or unwanted()):
                self.keep(await self._least_loaded().wait(deadline, unwanted))
        finally:
            self._turn.release()
        return bool(self._kept)

    def _least_loaded(self) -> QueueReceiver:
        return min(self.receivers, key=lambda each: each.load)

    def stop_waiting(self) -> None:
        for receiver in self.receivers:
            receiver.stop_waiting.set()

    def keep(self, deliveries: list[Delivery]) -> None:
        """Keep these for the next `take`; when none comes within `PREFETCH_KEPT_S`, they go back to the queue."""
        self._kept.extend(deliveries)
        if self._kept and self._giving_back is None:
            self._giving_back = asyncio.ensure_future(self._give_back_later())

    async def give_back(self) -> None:
        """Give the kept ones back now. Blocks for `GIVE_BACK_LIMIT_S` at most; locks of the rest run out."""
        kept, self._kept = list(self._kept), deque()
        limit = min(GIVE_BACK_LIMIT_S, self.address.timeout)

        async def give_back(receiver: QueueReceiver) -> None:
            mine = [(delivery, RELEASE) for delivery in kept if delivery.receiver is receiver]
            try:
                async with asyncio.timeout(limit):
                    await receiver.settle(mine, time.monotonic() + limit)
            except Exception as error:  # noqa: BLE001 - after any error their locks run out
                receiver.forget(len(mine))
                log.info("%s, queue %s: messages were not given back: %r", self.address.title, self.name, error)

        await asyncio.gather(*map(give_back, {delivery.receiver for delivery in kept}))

    async def close(self) -> None:
        """Give back what is kept, and close all channels, at the same time."""
        if self._giving_back is not None:
            self._giving_back.cancel()
        self.stop_waiting()
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_LIMIT_S), self._turn:  # once the wait has brought what it got
                pass
        await self.give_back()
        receivers = (receiver.channel for receiver in self.receivers)
        channels: tuple[Channel[Any], ...] = self.sending, self.management, self.dead, *receivers
        await asyncio.gather(*(channel.close() for channel in channels))

    async def _give_back_later(self) -> None:
        try:
            while self._kept:
                left = self._kept[0].received + PREFETCH_KEPT_S - time.monotonic()
                if left <= 0:
                    await self.give_back()
                else:
                    await asyncio.sleep(left)
        finally:
            self._giving_back = None
