"""Peeking: reading what is in a queue, or in its dead letters, without taking it. Nothing is locked or changed."""

from __future__ import annotations

from collections.abc import Iterator

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from jobpool_backends.servicebus.hub import Hub

PIECE = 250
"""Messages asked for at once. The broker may give fewer, whatever is left."""


def peek(hub: Hub, queue: str, *, dead: bool) -> Iterator[ServiceBusReceivedMessage]:
    """All messages of a queue, or its dead letters, in the order of their numbers; a round trip for each piece.

    One that moves meanwhile may be passed over, or be seen twice.

    Raises `BackendUnavailable`, or `ConfigurationError` when there is no such queue.
    """
    first = 1
    while piece := _piece(hub, queue, dead, first):
        yield from piece
        first = (piece[-1].sequence_number or first) + 1


def _piece(hub: Hub, queue: str, dead: bool, first: int) -> list[ServiceBusReceivedMessage]:
    station = hub.queue(queue)

    async def ask(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
        return await receiver.peek_messages(PIECE, sequence_number=first)

    channel = station.dead if dead else station.management
    return hub.call(channel.run(ask))


async def is_there(receiver: ServiceBusReceiver, number: int) -> bool:
    """Whether the queue still has the message with this number, whatever its state. On the hub's loop."""
    found = await receiver.peek_messages(1, sequence_number=number)
    return bool(found) and found[0].sequence_number == number
