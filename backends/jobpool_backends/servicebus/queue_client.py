"""All channels of one queue, and the messages that were received while waiting.

Three connections for each queue, opened when they are needed. One sends, one (or more) fetches and settles, one renews
and peeks, and is never given credit. A fourth, for the dead letters, is opened once somebody counts or looks at them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.internals import RELEASE
from jobpool_backends.servicebus.receiver import Delivery, QueueReceiver

PREFETCH_KEPT_S = 1.0  # time that a message which came while somebody waited is kept for the fetch that follows
GIVE_BACK_LIMIT_S = 3.0  # time to give such messages back; their locks run out in any case

log = logging.getLogger("jobpool.servicebus")

_HANDLER: dict[str, Any] = {"timeout": 5, "socket_timeout": 0.2}


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
        self.closed = False

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
        """End the waits on this queue."""
        for receiver in self.receivers:
            receiver.stop_waiting()

    def keep(self, deliveries: list[Delivery]) -> None:
        """Keep these for the next `take`; when none comes within `PREFETCH_KEPT_S`, they go back to the queue."""
        self._kept.extend(deliveries)
        if self._kept and self._giving_back is None:
            self._giving_back = asyncio.ensure_future(self._give_back_later())

    async def give_back(self) -> None:
        """Give the kept ones back now. Blocks for `GIVE_BACK_LIMIT_S` at most; locks of the rest run out."""
        kept, self._kept = list(self._kept), deque()
        deadline = time.monotonic() + min(GIVE_BACK_LIMIT_S, self.address.timeout)
        parts = [[each for each in kept if each.receiver is receiver] for receiver in self.receivers]
        await asyncio.gather(*(self._give_back(mine, deadline) for mine in parts if mine))

    async def close(self) -> None:
        """Give back what is kept, and close all channels, at the same time."""
        self.closed = True
        if self._giving_back is not None:
            self._giving_back.cancel()
        self.stop_waiting()
        await self.give_back()
        channels: list[Channel[Any]] = [self.sending, self.management, self.dead]
        channels += [receiver.channel for receiver in self.receivers]
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

    async def _give_back(self, deliveries: list[Delivery], deadline: float) -> None:
        """Give back these messages of one receiver."""
        receiver = deliveries[0].receiver
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                await receiver.settle([(delivery, RELEASE) for delivery in deliveries], deadline)
        except Exception as error:  # noqa: BLE001 - after any error their locks run out
            receiver.forget(len(deliveries))
            log.info("%s, queue %s: messages were not given back: %r", self.address.title, self.name, error)
