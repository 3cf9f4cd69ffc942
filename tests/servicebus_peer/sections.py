"""A message as sections: AMQP 3.2."""

from __future__ import annotations

from typing import NamedTuple

from servicebus_peer import codes
from servicebus_peer.decoding import decode, end_of


class Section(NamedTuple):
    """One section of an encoded message, as offsets into it."""

    code: int
    start: int
    value: int
    end: int


def sections_of(payload: bytes) -> list[Section]:
    """Of an encoded message."""
    found = []
    at = 0
    while at < len(payload):
        section = _section(payload, at)
        found.append(section)
        at = section.end
    return found


def _section(payload: bytes, start: int) -> Section:
    code, value = decode(payload, start + 1)
    assert isinstance(code, int)
    return Section(code, start, value, end_of(payload, value))


def unbatched(payload: bytes) -> list[bytes]:
    """The encoded messages in a batch, one in each data section (the protocol guide on message format 0x80013700)."""
    messages = []
    for section in sections_of(payload):
        if section.code == codes.DATA:
            message, _ = decode(payload, section.value)
            assert isinstance(message, bytes)
            messages.append(message)
    return messages


def body_of(payload: bytes) -> bytes:
    """The bytes of its data sections; of another kind of body, its encoded sections."""
    data, other = b"", b""
    for section in sections_of(payload):
        if section.code == codes.DATA:
            value, _ = decode(payload, section.value)
            data += value if isinstance(value, bytes) else b""
        elif section.code in (codes.AMQP_SEQUENCE, codes.AMQP_VALUE):
            other += payload[section.start : section.end]
    return data or other
