"""Requests and replies over a pair of links: the operations guide, "Attach to entity management node"; and $cbs."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.decoding import decode
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
    found = {section.code: decode(payload, section.value)[0] for section in sections_of(payload)}
    properties = found.get(codes.APPLICATION_PROPERTIES) or {}
    assert isinstance(properties, dict)
    return Request(Fields(found.get(codes.PROPERTIES, [])).anything(0), properties, found.get(codes.AMQP_VALUE))


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
    """Of one of the types that a message id of a client here has: AMQP 3.2.11 to 3.2.14."""
    if isinstance(value, uuid.UUID):
        return e.uuid(value)
    return e.NULL if value is None else e.string(str(value))
