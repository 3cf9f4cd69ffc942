"""Bytes in, frames out: AMQP 2.2 and 2.3."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from servicebus_peer.decoding import Described, decode

MAX_FRAME_SIZE = 65_536
"""Bytes; what this peer takes, and the most it sends."""

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_FRAME = 0
SASL_FRAME = 1

_HEAD = struct.Struct(">IBBH")


class Header(NamedTuple):
    """A protocol header: 8 bytes that say which protocol and version a client wants."""

    data: bytes


class Frame(NamedTuple):
    """One frame. `fields` is the list of the performative; `payload` what follows it."""

    kind: int
    channel: int
    code: int
    fields: object
    payload: bytes


EMPTY = _HEAD.pack(8, 2, AMQP_FRAME, 0)
"""A frame without a body: it says no more than that the sender is there."""


def frame(channel: int, body: bytes, kind: int = AMQP_FRAME) -> bytes:
    return _HEAD.pack(len(body) + 8, 2, kind, channel) + body


class FrameReader:
    """Puts frames together from what single reads returned."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Header | Frame]:
        """The headers and frames that these bytes complete; empty frames are left out."""
        self._data += data
        at = 0
        try:
            while len(self._data) - at >= 8:
                size = self._size(at)
                if len(self._data) - at < size:
                    return
                whole = bytes(self._data[at : at + size])
                at += size
                if whole.startswith(b"AMQP"):
                    yield Header(whole)
                elif (found := _parsed(whole)) is not None:
                    yield found
        finally:
            del self._data[:at]

    def _size(self, at: int) -> int:
        """As a size, the first four bytes of a header would be far above the limit: the two are never mixed up."""
        head = self._data[at : at + 4]
        return 8 if head == b"AMQP" else int.from_bytes(head, "big")


def _parsed(data: bytes) -> Frame | None:
    size, words, kind, channel = _HEAD.unpack_from(data)
    start = words * 4
    if start == size:
        return None
    value, end = decode(data, start)
    assert isinstance(value, Described)
    assert isinstance(value.descriptor, int)
    return Frame(kind, channel, value.descriptor, value.value, data[end:])
