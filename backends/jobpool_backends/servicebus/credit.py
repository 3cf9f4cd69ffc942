"""Credit: how many messages the broker may push. Given for the fetch of now, and taken back at its end.

AMQP has what a job queue needs, but the SDK's public calls do not expose it. To ask for the messages of *now*, credit
is given with the flag `drain`. The broker sends its messages, and says that the rest of the credit is used up. That is
one round trip. `receive_messages` waits for a time instead, and leaves the rest of its credit with the broker; messages
pushed later are locked in a receiver that nobody reads.

To wait, one credit is given, and taken back in the same way if nothing came.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from jobpool_backends.servicebus.internals import LinkListener, listener_of, read_until, ready_client

LATE_ECHO_LIMIT_S = 0.25
"""Seconds for the broker to say that credit is used up that its messages have used up."""

WAIT_READ_S = 1.0
"""Seconds that one read waits: what comes in it is taken to have been locked at its start."""

_LOCKED_UNTIL = b"x-opt-locked-until"


async def draw(receiver: ServiceBusReceiver, most: int) -> list[ServiceBusReceivedMessage]:
    """Return the messages of the queue now, `most` at most: one round trip.

    Raises TimeoutError when the broker does not say that this is all, and what the SDK raises of broken links.
    """
    client = await ready_client(receiver)
    listener = listener_of(receiver)
    receiver._receive_context.set()
    try:
        await listener.give_credit(most, drain=True)
        await read_until(client, lambda: listener.drained or client._received_messages.qsize() >= most)
        if not listener.drained:
            await _hear_late_echo(client, listener)
        return _buffered(receiver)
    finally:
        receiver._receive_context.clear()


async def wait(
    receiver: ServiceBusReceiver, stop: asyncio.Event, seconds: float
) -> tuple[list[ServiceBusReceivedMessage], float]:
    """Wait for one message, until `stop` is set, or so long; and the time before which it was not locked.

    The time is `time.monotonic()`'s. No credit is left behind; what came while it was taken back is returned as well.
    """
    client = await ready_client(receiver)
    listener = listener_of(receiver)
    receiver._receive_context.set()
    try:
        await listener.give_credit(1, drain=False)
        began = await _read_unless(client, stop, time.monotonic() + seconds)
        if client._received_messages.empty():
            await listener.give_credit(0, drain=True)
            await read_until(client, lambda: listener.drained)
        return _buffered(receiver), began
    finally:
        receiver._receive_context.clear()


def received_before_break(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    """Return messages that had arrived before their connection broke: the locks are ours, and hold without it."""
    return [] if receiver._handler is None else _buffered(receiver)


async def take(receiver: ServiceBusReceiver, count: int, seconds: float) -> list[ServiceBusReceivedMessage]:
    """Return at most `count` messages of the queue; if it has none, the first to come within `seconds`."""
    messages = await draw(receiver, count)
    if not messages and seconds > 0:
        messages, _ = await wait(receiver, asyncio.Event(), seconds)
    for message in messages:
        pop_lock_end(message)
    return messages


def pop_lock_end(message: ServiceBusReceivedMessage) -> float | None:
    """Take the end of the lock off the message, and return it: Unix time on the broker's clock.

    Else the SDK compares it with this machine's clock, and refuses to settle a message whose lock has ended by that.
    """
    notes: Any = message.raw_amqp_message.annotations
    until = notes.pop(_LOCKED_UNTIL, None) if notes else None
    return None if until is None else until / 1000


async def _hear_late_echo(client: Any, listener: LinkListener) -> None:
    """Take the late answer, so that the next one is not mistaken for it; a broker may send none."""
    try:
        await read_until(client, lambda: listener.drained, LATE_ECHO_LIMIT_S)
    except TimeoutError:
        listener.drained = True


async def _read_unless(client: Any, stop: asyncio.Event, give_up: float) -> float:
    """Read until a message is there, or `stop` is set; when the last read began."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while True:
            began = time.monotonic()
            left = give_up - began
            if left <= 0 or stop.is_set() or not client._received_messages.empty():
                return began
            await _first(client._connection.listen(wait=min(left, WAIT_READ_S)), stopped)
            client._link.get_state()  # raises its error, if any
            if not client._received_messages.empty():
                return began
    finally:
        stopped.cancel()


async def _first(reading: Any, stopped: asyncio.Future[Any]) -> None:
    """Read, unless that is not wanted any more. A read that is cut short keeps what it has for the next."""
    task = asyncio.ensure_future(reading)
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def _buffered(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    buffer: Any = receiver._handler._received_messages
    messages = []
    while not buffer.empty():
        messages.append(receiver._build_received_message(buffer.get()))
        buffer.task_done()
    return messages
