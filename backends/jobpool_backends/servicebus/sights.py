"""The result of a look at a queue: a peeked message, as an administrator sees it. Does no I/O.

The broker tells for each message its number, whether its time has come, and how often it was delivered in vain. It does
not tell who holds it: a waiting message and one that another client has locked look alike. The leases of this client
are known here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage

from jobpool.broker.values import Message, MessageFilter, State
from jobpool.clock import Clock
from jobpool.errors import MalformedEnvelope
from jobpool.message.envelope import decode
from jobpool_backends.servicebus.leases import Held
from jobpool_backends.servicebus.records import Record, as_seconds, read
from jobpool_backends.shared import MICRO, contains

_TIES = 1000


@dataclass(frozen=True, slots=True)
class Now:
    """Now. `wall`: Unix time; `boot`: CLOCK_BOOTTIME. Seconds."""

    wall: float
    boot: float

    @classmethod
    def of(cls, clock: Clock) -> Now:
        return cls(clock.wall(), clock.boot())


@dataclass(frozen=True, slots=True)
class Found:
    """One message. `sequence`: the broker's number for it, in its queue or in that one's dead letters."""

    message: Message
    sequence: int

    @property
    def place(self) -> int:
        """Where it stands in lists; its cursor."""
        return int(self.message.cursor)


def see(queue: str, peeked: ServiceBusReceivedMessage, held: Mapping[int, Held], now: Now, *, dead: bool) -> Found:
    """Return the sight of a peeked message or dead letter; `held`: the leases of this client on the queue, by
    number.
    """
    record = read(peeked)
    sequence = peeked.sequence_number or 0
    holding = None if dead else held.get(sequence)
    if holding is not None and holding.expires_at <= now.boot:
        holding = None  # the broker has it back
    state = State.DEAD if dead else _state(peeked, holding)
    message = Message(
        id=record.id,
        queue=queue,
        state=state,
        handler=_handler(record),
        priority=record.priority,
        attempts=record.attempts,
        crashes=record.crashes,
        deliveries=holding.deliveries if holding else delivered(record, peeked),
        enqueued_at=record.enqueued_at / MICRO,
        available_at=_available_at(record, peeked),
        body=record.body,
        reason=record.reason,
        last_error=record.last_error,
        cause=record.cause,
        died_at=as_seconds(record.died_at),
        expires_at=now.wall + holding.expires_at - now.boot if holding else None,
        cursor=_cursor(record),
    )
    return Found(message, sequence)


def delivered(record: Record, message: ServiceBusReceivedMessage) -> int:
    """Return how often it was leased, earlier copies included. The broker counts those that came back, so not the last
    one of what a settlement made a dead letter.
    """
    return record.deliveries + (message.delivery_count or 0) + (record.died_at is not None)


def raised(record: Record, message: ServiceBusReceivedMessage, *, afresh: bool) -> Record:
    """Return the record to send for a dead letter that goes back to the queue; `afresh`: without its past."""
    living = replace(record, deliveries=delivered(record, message), begun=True, reason=None, died_at=None)
    if not afresh:
        return living
    return replace(living, attempts=0, crashes=0, crashed_at=None, last_error=None, cause=None)


def matches(message: Message, where: MessageFilter, now: float) -> bool:
    """Return whether a person means this one; `now`: Unix time."""
    age = round(now - (message.enqueued_at if message.died_at is None else message.died_at), 6)
    return (
        (where.queue is None or message.queue == where.queue)
        and (where.handler is None or message.handler == where.handler)
        and (not where.states or message.state in where.states)
        and (where.reason is None or message.reason == where.reason)
        and (where.older_than is None or age >= where.older_than)
        and (where.newer_than is None or age <= where.newer_than)
        and (not where.ids or message.id in where.ids)
        and (where.text is None or contains(where.text, message.body, message.last_error, message.cause))
    )


def _state(peeked: ServiceBusReceivedMessage, holding: Held | None) -> State:
    if peeked.state == ServiceBusMessageState.SCHEDULED:
        return State.DELAYED
    # A message that another program has deferred can be reached by that program only.
    if holding is not None or peeked.state == ServiceBusMessageState.DEFERRED:
        return State.LEASED
    return State.WAITING


def _available_at(record: Record, peeked: ServiceBusReceivedMessage) -> float:
    """Return when its time comes, or came: the broker stamps anew what it was to keep for later."""
    moment = peeked.scheduled_enqueue_time_utc or peeked.enqueued_time_utc
    return moment.timestamp() if moment else record.enqueued_at / MICRO


def _handler(record: Record) -> str:
    """Return the handler's name, of another program's message too."""
    if record.handler:
        return record.handler
    try:
        return decode(record.body, attempts=0).job
    except MalformedEnvelope:
        return ""


def _cursor(record: Record) -> str:
    """Return digits that grow in the order of the first enqueue; two clients may have enqueued in one microsecond."""
    return str(record.enqueued_at * _TIES + zlib.crc32(record.id.encode()) % _TIES)
