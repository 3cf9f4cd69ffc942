"""A message in a queue: what its sender wrote, untouched, and what the broker adds to it.

Source: the protocol guide, "Messages", for header, properties and annotations.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import IntEnum

from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.decoding import decode, pairs_of
from servicebus_peer.fields import Fields
from servicebus_peer.sections import Section, sections_of

SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
_OURS = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
    }
)
"""Annotations that the broker sets, whatever a sender wrote there."""

Pair = tuple[str, bytes]
"""A key of a map, and the bytes of key and value."""


class State(IntEnum):
    """x-opt-message-state; a locked message is active."""

    ACTIVE = 0
    SCHEDULED = 2


@dataclass(slots=True)
class Lock:
    """A peek-lock. `until` in seconds of the peer's monotonic clock, `shown_until` in ms of Unix time."""

    token: uuid.UUID
    until: float
    shown_until: int


@dataclass(slots=True, eq=False)
class Message:
    """Times in seconds of Unix time.

    Attributes:
        application_properties: Of a dead letter, by the broker.
        delivery_count: Deliveries that failed, so 0 at the first.
        scheduled_for: When it becomes active; None = at once.
    """

    size: int
    annotations: list[Pair] = field(default_factory=list)
    properties: bytes = b""
    application_properties: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    message_id: object = None
    scheduled_for: float | None = None
    sequence_number: int = 0
    enqueued_sequence_number: int = 0
    enqueued: float = 0.0
    delivery_count: int = 0
    state: State = State.ACTIVE
    lock: Lock | None = None

    def encoded(self, peeked: bool = False) -> bytes:
        """As a receiver gets it; one that is only peeked at shows no lock ("Message browsing")."""
        return self._header() + self._annotations(peeked) + self.properties + self._application() + self.body

    def _header(self) -> bytes:
        return e.composite(codes.HEADER, [e.FALSE, e.NULL, e.NULL, e.NULL, e.uint(self.delivery_count)])

    def _annotations(self, peeked: bool) -> bytes:
        pairs = [pair for key, pair in self.annotations if key not in _OURS]
        pairs += [
            _ENQUEUED + e.timestamp(int(self.enqueued * 1000)),
            _NUMBER + e.long(self.sequence_number),
            _FIRST_NUMBER + e.long(self.enqueued_sequence_number),
            _STATE + e.int_(self.state),
        ]
        if self.lock is not None and not peeked:
            pairs.append(_LOCKED_UNTIL + e.timestamp(self.lock.shown_until))
        return _map_section(codes.MESSAGE_ANNOTATIONS, pairs)

    def _application(self) -> bytes:
        if not self.application_properties:
            return b""
        pairs = [e.string(key) + e.string(value) for key, value in self.application_properties.items()]
        return _map_section(codes.APPLICATION_PROPERTIES, pairs)


_ENQUEUED = e.symbol("x-opt-enqueued-time")
_NUMBER = e.symbol("x-opt-sequence-number")
_FIRST_NUMBER = e.symbol("x-opt-enqueue-sequence-number")
_STATE = e.symbol("x-opt-message-state")
_LOCKED_UNTIL = e.symbol("x-opt-locked-until")


def _map_section(code: int, pairs: list[bytes]) -> bytes:
    return e.described(code, e.map_of(pairs))


def parsed(payload: bytes) -> Message:
    """What a sender sent."""
    message = Message(len(payload))
    for section in sections_of(payload):
        _READ.get(section.code, _body)(message, payload, section)
    return message


def _message_annotations(message: Message, payload: bytes, section: Section) -> None:
    message.annotations = pairs_of(payload, section.value)
    for key, pair in message.annotations:
        if key == SCHEDULED_TIME:
            _, at = decode(pair)
            moment, _ = decode(pair, at)
            message.scheduled_for = moment / 1000 if isinstance(moment, int) else None


def _properties(message: Message, payload: bytes, section: Section) -> None:
    message.message_id = Fields(decode(payload, section.value)[0]).anything(0)
    message.properties = payload[section.start : section.end]


def _nothing(_message: Message, _payload: bytes, _section: Section) -> None:
    """Delivery annotations are for the next node only (AMQP 3.2.2), and jobpool sends nothing in the others."""


def _body(message: Message, payload: bytes, section: Section) -> None:
    """The body, and a footer."""
    message.body += payload[section.start : section.end]


_READ = {
    codes.HEADER: _nothing,
    codes.DELIVERY_ANNOTATIONS: _nothing,
    codes.MESSAGE_ANNOTATIONS: _message_annotations,
    codes.PROPERTIES: _properties,
    codes.APPLICATION_PROPERTIES: _nothing,
}
