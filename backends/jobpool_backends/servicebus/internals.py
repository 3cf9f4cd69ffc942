"""Use of the SDK's internals: the first place to look when a new SDK does not work.

Everything else uses the SDK's public calls. The range of versions in pyproject.toml is as narrow as that asks for.

AMQP has what a job queue needs, but the SDK's public calls do not expose it. To ask for the messages of *now*, credit
is given with the flag `drain`. The broker sends what it has, and says that the rest is used up: one round trip.
`receive_messages` waits for a time instead, and leaves the rest of its credit with the broker. Messages pushed later
are locked in a receiver that nobody reads. To wait, one credit is given, and taken back in the same way.

Dispositions of a batch are on their way together, where `complete_message` waits for each answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.outcomes import Accepted, Modified, Rejected, Released
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from msgspec import Struct

ROUND_TRIP_LIMIT_S = 5.0  # time for the broker to answer; beyond it the handler is in doubt
READ_SLICE_S = 0.1  # time of one read before a look whether another has read the awaited frame
WAIT_READ_S = 1.0  # time of one read of a wait: its messages count as locked at its start
LATE_ECHO_LIMIT_S = 0.25  # time for the broker to say that credit is used up that its messages have used up
MAX_DISPOSITIONS = 10_000

log = logging.getLogger("jobpool.servicebus")

Handler = ServiceBusSender | ServiceBusReceiver
Messages = Sequence[ServiceBusReceivedMessage]

Answer = BaseException | None  # None: it is so. One of `errors.LOST`: the lock was gone. A TimeoutError: unknown.


_OUTCOMES: dict[str, Any] = {
    "accepted": Accepted(),
    "released": Released(),
    "modified": Modified(delivery_failed=True, undeliverable_here=False, message_annotations=None),
}


class Disposition(Struct, frozen=True):
    """An order about a message that we hold: AMQP's outcome `kind`, and the two texts of a dead letter."""

    kind: str
    reason: str = ""
    description: str = ""

    def outcome(self) -> Any:
        """Return it as the SDK sends it."""
        if self.kind in _OUTCOMES:
            return _OUTCOMES[self.kind]
        texts = {"DeadLetterReason": self.reason, "DeadLetterErrorDescription": self.description}
        return Rejected(AMQPError(condition=b"com.microsoft:dead-letter", description=self.description, info=texts))


COMPLETE = Disposition("accepted")  # done with: it goes
ABANDON = Disposition("modified")  # back to the queue at once; counted as a delivery
RELEASE = Disposition("released")  # back to the queue at once, as if it had not been looked at
BURY = "rejected"  # the kind that moves a message to the dead letters


class LinkListener:
    """A listener in front of the SDK's `ReceiverLink`: that one ignores used-up credit, and ends of dispositions."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._next_flow = link._incoming_flow
        self._next_disposition = link._incoming_disposition
        self.drained = True  # the broker has said that none of the credit is left
        self.outcomes: dict[int, Any] = {}  # by delivery id: None while nothing was heard, then how it ended
        self.pending = 0
        link._incoming_flow = self._hear_flow
        link._incoming_disposition = self._hear_disposition

    async def give_credit(self, credit: int, *, drain: bool) -> None:
        """Tell the broker how many messages it may send; with `drain`, only those that it has now."""
        self.drained = not drain
        await self._link.flow(link_credit=credit, drain=drain)

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


def _client_of(receiver: ServiceBusReceiver) -> Any:
    client: Any = receiver._handler
    if client is None or client._link is None:
        raise sdk.ServiceBusConnectionError(message="the receiver was closed")
    return client


async def _ready(receiver: ServiceBusReceiver) -> tuple[Any, LinkListener]:
    """Return the client, with a valid token and an attached link; and the listener there, made with its first use."""
    client = _client_of(receiver)
    async with asyncio.timeout(ROUND_TRIP_LIMIT_S):
        while not await client.client_ready_async():
            await asyncio.sleep(0.01)
    link = _client_of(receiver)._link
    listener: LinkListener | None = getattr(link, "_jobpool_listener", None)
    if listener is None:
        listener = link._jobpool_listener = LinkListener(link)
    return client, listener


async def _read_until(client: Any, done: Callable[[], bool], seconds: float = 0.0) -> None:
    """Read frames until it is done; TimeoutError after `seconds` (0 = `ROUND_TRIP_LIMIT_S`)."""
    give_up = time.monotonic() + (seconds or ROUND_TRIP_LIMIT_S)
    while not done():
        left = give_up - time.monotonic()
        if left <= 0:
            raise TimeoutError("the broker did not answer")
        await client._connection.listen(wait=min(READ_SLICE_S, left))
        client._link.get_state()  # raises its error, if any


@asynccontextmanager
async def _receiving(receiver: ServiceBusReceiver) -> AsyncIterator[tuple[Any, LinkListener]]:
    ready = await _ready(receiver)
    receiver._receive_context.set()
    try:
        yield ready
    finally:
        receiver._receive_context.clear()


async def receive_now(receiver: ServiceBusReceiver, most: int) -> tuple[list[ServiceBusReceivedMessage], float]:
    """Return the messages of the queue now, `most` at most, and a time before their locks: one round trip.

    Raises TimeoutError when the broker does not say that this is all, and what the SDK raises of broken links.
    """
    began = time.monotonic()
    async with _receiving(receiver) as (client, listener):
        await listener.give_credit(most, drain=True)
        await _read_until(client, lambda: listener.drained or client._received_messages.qsize() >= most)
        if not listener.drained:
            try:  # take the late echo, so that the next one is not mistaken for it; a broker may send none
                await _read_until(client, lambda: listener.drained, LATE_ECHO_LIMIT_S)
            except TimeoutError:
                listener.drained = True
        return take_buffered(receiver), began


async def receive_one(
    receiver: ServiceBusReceiver, stop: asyncio.Event, seconds: float
) -> tuple[list[ServiceBusReceivedMessage], float]:
    """Wait for one message, `seconds` at most or until `stop` is set; return it, and a time before its lock.

    No credit is left with the broker; messages that came while it was taken back are returned as well.
    """
    async with _receiving(receiver) as (client, listener):
        await listener.give_credit(1, drain=False)
        began = await _read_unless(client, stop, time.monotonic() + seconds)
        if client._received_messages.empty():
            await listener.give_credit(0, drain=True)
            await _read_until(client, lambda: listener.drained)
        return take_buffered(receiver), began


async def receive(receiver: ServiceBusReceiver, count: int, seconds: float) -> list[ServiceBusReceivedMessage]:
    """Return at most `count` messages of the queue; if it has none, the first to come within `seconds`."""
    messages, _ = await receive_now(receiver, count)
    if not messages and seconds > 0:
        messages, _ = await receive_one(receiver, asyncio.Event(), seconds)
    for message in messages:
        pop_lock_end(message)
    return messages


def take_buffered(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    """Return messages that have arrived, even if their connection broke: the locks are ours, and hold without it."""
    if receiver._handler is None:
        return []
    buffer: Any = receiver._handler._received_messages
    messages = []
    while not buffer.empty():
        messages.append(receiver._build_received_message(buffer.get()))
        buffer.task_done()
    return messages


def pop_lock_end(message: ServiceBusReceivedMessage) -> float | None:
    """Take the end of the lock off the message, and return it: Unix time on the broker's clock.

    Else the SDK compares it with this machine's clock, and refuses to settle a message whose lock has ended by that.
    """
    notes: Any = message.raw_amqp_message.annotations
    until = notes.pop(b"x-opt-locked-until", None) if notes else None
    return None if until is None else until / 1000


async def _read_unless(client: Any, stop: asyncio.Event, give_up: float) -> float:
    """Read until a message is there, or `stop` is set; return when the last read began."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while True:
            began = time.monotonic()
            left = give_up - began
            if left <= 0 or stop.is_set() or not client._received_messages.empty():
                return began
            reading = asyncio.ensure_future(client._connection.listen(wait=min(left, WAIT_READ_S)))
            try:
                await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not reading.done():  # a read that is cut short keeps what it has for the next
                    reading.cancel()
                    await asyncio.wait({reading})
            if not reading.cancelled():
                reading.result()
            client._link.get_state()  # raises its error, if any
            if not client._received_messages.empty():
                return began
    finally:
        stopped.cancel()


async def settle(
    receiver: ServiceBusReceiver, dispositions: Sequence[tuple[ServiceBusReceivedMessage, Disposition]]
) -> list[Answer]:
    """Settle messages on their link; return an answer each. One round trip. Raises as broken links do."""
    client, listener = await _ready(receiver)
    listener.outcomes = dict.fromkeys(message._delivery_id for message, _ in dispositions)
    listener.pending = len(listener.outcomes)
    for message, disposition in dispositions:
        await client._link.send_disposition(
            first_delivery_id=message._delivery_id,
            delivery_tag=message._delivery_tag,
            settled=False,
            delivery_state=disposition.outcome(),
        )
    with suppress(TimeoutError):  # told one by one
        await _read_until(client, lambda: not listener.pending)
    listener.pending = 0
    return [_answer(listener.outcomes[message._delivery_id], disposition) for message, disposition in dispositions]


def settles_here(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> bool:
    """Return whether the receiver's link has this delivery as one to settle."""
    return message._delivery_tag in _client_of(receiver)._link._received_delivery_tags


def _answer(outcome: dict[str, Any] | None, disposition: Disposition) -> Answer:
    """Read an outcome. A rejection may carry an error; one without is only the echo of a dead letter."""
    if outcome is None:
        return TimeoutError("the broker did not say what became of the message")
    name = next(iter(outcome), "")
    if name == "rejected" and outcome[name] and (error := outcome[name][0]):
        texts = [each.decode() if isinstance(each, bytes) else str(each) for each in error[:2] if each]
        condition, description = texts[0], texts[-1]
        if condition == "com.microsoft:message-lock-lost":
            return sdk.MessageLockLostError(message=description)
        return sdk.ServiceBusError(description, condition=condition)
    if name == disposition.kind:
        return None
    return sdk.ServiceBusError(f"the broker answered {name or 'nothing'} to {disposition.kind}")


async def renew_locks(receiver: ServiceBusReceiver, tokens: Sequence[Any], seconds: float) -> list[float]:
    """Hold the locks with these tokens longer, all or none; return the Unix times of their ends. One round trip."""
    answer = await receiver._renew_locks(*tokens, timeout=seconds)
    return [moment / 1000 for moment in answer[b"expirations"]]


def largest_message(sender: ServiceBusSender) -> int:
    return int(sender._max_message_size_on_link)


def is_broken(handler: Handler) -> bool:
    """Return whether the other side has ended the connection, as far as is known without asking."""
    connection = getattr(getattr(handler, "_handler", None), "_connection", None)
    reader = getattr(getattr(connection, "_transport", None), "reader", None)
    return reader is None or reader.at_eof() or reader.exception() is not None


def remember_clients(handler: Handler) -> list[Any]:
    """Return a list of all AMQP clients that it is going to make: it forgets one whose opening was cut short."""
    inside: Any = handler
    made: list[Any] = []
    create = inside._create_handler

    def create_and_remember(*arguments: Any) -> None:
        create(*arguments)
        made.append(inside._handler)

    inside._create_handler = create_and_remember
    return made


async def close_or_cut_off(handler: Handler, clients: Sequence[Any], limit: float) -> None:
    """Close a handler, and cut off the clients' connections that closing has not ended in `limit` seconds."""
    connections = [client._connection for client in clients if client._connection is not None]
    try:
        async with asyncio.timeout(limit):
            await handler.close()
    except Exception as error:  # noqa: BLE001 - after any error it is cut off
        log.debug("closing: %r", error)
    finally:
        for connection in connections:
            writer = getattr(getattr(connection, "_transport", None), "writer", None)
            if writer is not None:
                writer.transport.abort()
