"""Peeking: reading what is in a queue, or in its dead letters, without taking it. Nothing is locked or changed.

The broker gives the messages in the order of their numbers, some at a time, and may give fewer than asked for. The end
is reached only when it gives none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.queue_client import QueueClient

PEEK_MESSAGES = 250
"""Messages asked for at once."""


def peek(
    namespace: Namespace, queue: str, *, dead: bool, piece: int = PEEK_MESSAGES
) -> Iterator[ServiceBusReceivedMessage]:
    """Yield all messages of a queue, or its dead letters; a round trip for each piece, and one more at the end.

    One that moves meanwhile may be passed over, or be seen twice.

    Raises `BackendUnavailable`, or `ConfigurationError` when there is no such queue.
    """
    client = namespace.queue(queue)
    channel = client.dead if dead else client.management
    first = 1
    while found := namespace.call(_piece(channel, first, piece)):
        yield from found
        first = _behind(found)


def peek_first(
    namespace: Namespace, queue: str, most: int
) -> tuple[list[ServiceBusReceivedMessage], list[ServiceBusReceivedMessage]]:
    """Return at most `most` first messages of a queue, and of its dead letters. Raises as `peek`."""
    return namespace.call(_peek_first(namespace.queue(queue), most))


async def is_there(receiver: ServiceBusReceiver, number: int) -> bool:
    """Return whether the queue still has the message with this number, whatever its state. On the namespace's loop."""
    found = await receiver.peek_messages(1, sequence_number=number)
    return bool(found) and found[0].sequence_number == number


async def _peek_first(
    client: QueueClient, most: int
) -> tuple[list[ServiceBusReceivedMessage], list[ServiceBusReceivedMessage]]:
    live, dead = await asyncio.gather(_collect(client.management, most), _collect(client.dead, most))
    return live, dead


async def _collect(channel: Channel[ServiceBusReceiver], most: int) -> list[ServiceBusReceivedMessage]:
    messages: list[ServiceBusReceivedMessage] = []
    first = 1
    while len(messages) < most and (found := await _piece(channel, first, min(PEEK_MESSAGES, most - len(messages)))):
        messages += found
        first = _behind(found)
    return messages


async def _piece(channel: Channel[ServiceBusReceiver], first: int, most: int) -> list[ServiceBusReceivedMessage]:
    async def ask(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
        return await receiver.peek_messages(most, sequence_number=first)

    return await channel.run(ask)


def _behind(found: list[ServiceBusReceivedMessage]) -> int:
    return (found[-1].sequence_number or 0) + 1
