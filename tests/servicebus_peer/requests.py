"""Requests and replies over a pair of links: the operations guide, "Attach to entity management node"; and $cbs."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.decoding import decode
from servicebus_peer.errors import DecodeError
from servicebus_peer.fields import Fields
from servicebus_peer.sections import sections_of


class Request(NamedTuple):
    """`properties`: its application properties; `value`: its body, an amqp-value."""

    message_id: object
    properties: dict[object, object]
    value: object

    @property
    def operation(self) -> str:
        return str(self.properties.get("operation", ""))


def parsed(payload: bytes) -> Request:
    """Raises `DecodeError` for what is not a message."""
    found = {section.code: decode(payload, section.value)[0] for section in sections_of(payload)}
    properties = found.get(codes.APPLICATION_PROPERTIES) or {}
    if not isinstance(properties, dict):
        raise DecodeError("the application properties are not a map")
    message_id = Fields(found.get(codes.PROPERTIES, []), "properties").anything(0)
    _encoded_id(message_id)
    return Request(message_id, properties, found.get(codes.AMQP_VALUE))


def reply(request: Request, properties: list[bytes], value: bytes = e.NULL) -> bytes:
    """A message with the request's id for correlation id; `properties` are encoded pairs."""
    return b"".join(
        (
            e.composite(codes.PROPERTIES, [*[e.NULL] * 5, _encoded_id(request.message_id), *[e.NULL] * 7]),
            e.described(codes.APPLICATION_PROPERTIES, e.map_of(properties)),
            e.described(codes.AMQP_VALUE, value),
        )
    )


def _encoded_id(value: object) -> bytes:
    """Of one of the types that a message id may have: AMQP 3.2.11 to 3.2.14."""
    match value:
        case None:
            return e.NULL
        case uuid.UUID():
            return e.uuid(value)
        case bytes():
            return e.binary(value)
        case str():
            return e.string(value)
        case int() if not isinstance(value, bool) and 0 <= value < 1 << 64:
            return e.ulong(value)
    raise DecodeError("a message id is a uuid, binary, a string or a ulong")
