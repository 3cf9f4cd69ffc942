"""Internals of the SDK that this package needs: the first place to look when a new SDK does not work.

credit.py and dispositions.py build on it; everything else uses the SDK's public calls. The range of versions in
pyproject.toml is as narrow as that asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from azure.servicebus import exceptions as sdk
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

READ_SLICE_S = 0.1
"""Seconds of reading before it is looked whether somebody else has read what is waited for."""

ROUND_TRIP_LIMIT_S = 5.0
"""Seconds for the broker to answer; beyond them the handler is in doubt."""

MAX_DISPOSITIONS = 10_000
"""Dispositions that one frame may tell of."""


class LinkListener:
    """A listener on a receiver's link for events that the SDK ignores: used-up credit, and the ends of dispositions.

    Args:
        link: The SDK's `ReceiverLink`; the listener puts itself in front of it.
    """

    def __init__(self, link: Any) -> None:
        self._link = link
        self._next_flow = link._incoming_flow
        self._next_disposition = link._incoming_disposition
        self.drained = True
        """The broker has said that none of the credit is left."""
        self.outcomes: dict[int, Any] = {}
        """By delivery id: None while nothing was heard, then how it ended."""
        self.pending = 0
        link._incoming_flow = self._hear_flow
        link._incoming_disposition = self._hear_disposition

    async def give_credit(self, credit: int, *, drain: bool) -> None:
        """Tell the broker how many messages it may send; with `drain`, only those that it has now."""
        self.drained = not drain
        await self._link.flow(link_credit=credit, drain=drain)

    def expect(self, deliveries: Sequence[int]) -> None:
        """Wait for the outcomes of these, and of nothing else."""
        self.outcomes = dict.fromkeys(deliveries)
        self.pending = len(self.outcomes)

    async def _hear_flow(self, frame: Any) -> None:
        """Count drained messages as delivered, on both sides (AMQP 2.6.7): the SDK leaves that out."""
        if not self.drained and frame[5] is not None and (frame[8] or not frame[6]):
            self._link.delivery_count = frame[5]
            self._link.current_link_credit = 0
            self.drained = True
        await self._next_flow(frame)

    async def _hear_disposition(self, frame: Any) -> None:
        role, first, last, settled, outcome = frame[:5]
        if not role and settled and self.pending:
            for delivery in range(first, min(last or first, first + MAX_DISPOSITIONS) + 1):
                if delivery in self.outcomes and self.outcomes[delivery] is None:
                    self.outcomes[delivery] = outcome or {}
                    self.pending -= 1
        await self._next_disposition(frame)


def listener_of(receiver: ServiceBusReceiver) -> LinkListener:
    """Return the listener at the receiver's link; it gets one with its first use."""
    link = client_of(receiver)._link
    listener: LinkListener | None = getattr(link, "_jobpool_ear", None)
    if listener is None:
        listener = link._jobpool_ear = LinkListener(link)
    return listener


def client_of(receiver: ServiceBusReceiver) -> Any:
    """Return the SDK's AMQP client of an open receiver."""
    client: Any = receiver._handler
    if client is None or client._link is None:
        raise sdk.ServiceBusConnectionError(message="the receiver was closed")
    return client


async def ready_client(receiver: ServiceBusReceiver) -> Any:
    """Return the same, with a token that is valid and a link that is attached."""
    client = client_of(receiver)
    async with asyncio.timeout(ROUND_TRIP_LIMIT_S):
        while not await client.client_ready_async():
            await asyncio.sleep(0.01)
    return client


async def read_until(client: Any, done: Callable[[], bool], seconds: float | None = None) -> None:
    """Read frames until it is done; TimeoutError when it is not within so long (None = `ROUND_TRIP_LIMIT_S`)."""
    give_up = time.monotonic() + (ROUND_TRIP_LIMIT_S if seconds is None else seconds)
    while not done():
        left = give_up - time.monotonic()
        if left <= 0:
            raise TimeoutError("the broker did not answer")
        await client._connection.listen(wait=min(READ_SLICE_S, left))
        client._link.get_state()  # raises its error, if any


async def renew_locks(receiver: ServiceBusReceiver, tokens: Sequence[Any], seconds: float) -> list[float]:
    """Hold the locks with these tokens longer, all or none: the Unix times at which they end then. One round trip."""
    answer = await receiver._renew_locks(*tokens, timeout=seconds)
    return [moment / 1000 for moment in answer[b"expirations"]]


def largest_message(sender: ServiceBusSender) -> int:
    """Return bytes that an open sender's queue takes as one message."""
    return int(sender._max_message_size_on_link)


def is_broken(handler: ServiceBusSender | ServiceBusReceiver) -> bool:
    """Return whether the other side has ended the connection, as far as is known without asking."""
    connection = connection_of(handler)
    reader = getattr(getattr(connection, "_transport", None), "reader", None)
    return reader is None or reader.at_eof() or reader.exception() is not None


def remember_clients(handler: ServiceBusSender | ServiceBusReceiver) -> list[Any]:
    """Return all AMQP clients that it is going to make: it forgets one whose opening was cut short, and leaves it
    open.
    """
    inside: Any = handler
    made: list[Any] = []
    create = inside._create_handler

    def create_and_remember(*arguments: Any) -> None:
        create(*arguments)
        made.append(inside._handler)

    inside._create_handler = create_and_remember
    return made


def connections_of(clients: Sequence[Any]) -> list[Any]:
    """Return the clients' open connections, to be cut off later."""
    return [client._connection for client in clients if client._connection is not None]


def cut_off(connection: Any) -> None:
    """End the connection of a handler that was closed, if closing has not ended it."""
    writer = getattr(getattr(connection, "_transport", None), "writer", None)
    if writer is not None:
        writer.transport.abort()


def connection_of(handler: ServiceBusSender | ServiceBusReceiver) -> Any:
    """Return its connection; None when it has none."""
    return getattr(getattr(handler, "_handler", None), "_connection", None)
