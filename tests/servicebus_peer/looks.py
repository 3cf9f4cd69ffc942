"""What a test sees of a queue: plain values, which cross the control port as JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Literal

from servicebus_peer.message import Message, State
from servicebus_peer.sections import body_of
from servicebus_peer.store import Store


@dataclass(frozen=True)
class Counts:
    """Messages of a queue by what they do now, and what has happened in it.

    Attributes:
        ready: Waiting for a receiver.
        dead: In the sub-queue, in any state; 0 for a sub-queue.
        tally: Counts since it was made; `lost_locks` ended by themselves.
    """

    ready: int
    locked: int
    scheduled: int
    dead: int
    tally: dict[str, int]

    @property
    def empty(self) -> bool:
        """Whether there is no message in any state, the sub-queue left out."""
        return not (self.ready or self.locked or self.scheduled)


@dataclass(frozen=True)
class MessageLook:
    """A message as the broker has it. Times are Unix times in seconds.

    Attributes:
        state: A locked message is active.
        lock_token: Of its lock, as text; None when it is not locked.
    """

    sequence_number: int
    message_id: str | None
    body: bytes
    state: Literal["active", "scheduled"]
    lock_token: str | None
    locked_until: float | None
    delivery_count: int
    enqueued: float
    scheduled_for: float | None
    properties: dict[str, str]

    @property
    def locked(self) -> bool:
        return self.lock_token is not None

    @property
    def dead_letter_reason(self) -> str | None:
        return self.properties.get("DeadLetterReason")


def counts_of(store: Store) -> dict[str, Any]:
    """The fields of `Counts`."""
    store.advance()
    return {
        **store.count(),
        "dead": sum(store.dead_letters.count().values()) if store.dead_letters else 0,
        "tally": dict(store.tally),
    }


def shown(message: Message) -> dict[str, Any]:
    """The fields of a `MessageLook`, as JSON takes them."""
    lock = message.lock
    return {
        "sequence_number": message.sequence_number,
        "message_id": None if message.message_id is None else str(message.message_id),
        "body": b64encode(body_of(message.body)).decode(),
        "state": State(message.state).name.lower(),
        "lock_token": str(lock.token) if lock else None,
        "locked_until": lock.shown_until / 1000 if lock else None,
        "delivery_count": message.delivery_count,
        "enqueued": message.enqueued,
        "scheduled_for": message.scheduled_for if message.state is State.SCHEDULED else None,
        "properties": message.application_properties,
    }


def look(fields: dict[str, Any]) -> MessageLook:
    """From what `shown` gave."""
    return MessageLook(**{**fields, "body": b64decode(fields["body"])})
