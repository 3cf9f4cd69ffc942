"""Values to bytes: the types of AMQP 1.0, part 1. Each function gives one value with its constructor."""

from __future__ import annotations

import struct
import uuid as uuids
from collections.abc import Iterable, Sequence

_UBYTE = struct.Struct(">BB").pack
_USHORT = struct.Struct(">BH").pack
_UINT = struct.Struct(">BI").pack
_ULONG = struct.Struct(">BQ").pack
_SMALL = struct.Struct(">Bb").pack
_INT = struct.Struct(">Bi").pack
_LONG = struct.Struct(">Bq").pack
_SIZE_AND_COUNT = struct.Struct(">BII").pack

NULL = b"\x40"
TRUE = b"\x41"
FALSE = b"\x42"
EMPTY_LIST = b"\x45"


def boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def ubyte(value: int) -> bytes:
    return _UBYTE(0x50, value)


def ushort(value: int) -> bytes:
    return _USHORT(0x60, value)


def uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return _UBYTE(0x52, value) if value < 256 else _UINT(0x70, value)


def ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return _UBYTE(0x53, value) if value < 256 else _ULONG(0x80, value)


def int_(value: int) -> bytes:
    return _SMALL(0x54, value) if -128 <= value < 128 else _INT(0x71, value)


def long(value: int) -> bytes:
    return _SMALL(0x55, value) if -128 <= value < 128 else _LONG(0x81, value)


def timestamp(milliseconds: int) -> bytes:
    """Of Unix time."""
    return _LONG(0x83, milliseconds)


def uuid(value: uuids.UUID) -> bytes:
    return b"\x98" + value.bytes


def binary(value: bytes) -> bytes:
    return _variable(value, 0xA0)


def string(value: str) -> bytes:
    return _variable(value.encode(), 0xA1)


def symbol(value: str) -> bytes:
    return _variable(value.encode("ascii"), 0xA3)


def list_(items: Sequence[bytes]) -> bytes:
    """`items` are encoded."""
    return _compound(0xC0, b"".join(items), len(items)) if items else EMPTY_LIST


def map_(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Keys and values are encoded."""
    return map_of([key + value for key, value in pairs])


def map_of(pairs: Sequence[bytes]) -> bytes:
    """Each is the encodings of a key and of its value."""
    return _compound(0xC1, b"".join(pairs), 2 * len(pairs))


def array_of_timestamps(values: Sequence[int]) -> bytes:
    """Milliseconds of Unix time."""
    return _array(0x83, b"".join([value.to_bytes(8, "big", signed=True) for value in values]), len(values))


def array_of_symbols(values: Sequence[str]) -> bytes:
    """Of at most 255 characters each."""
    return _array(0xA3, b"".join([bytes((len(value),)) + value.encode("ascii") for value in values]), len(values))


def described(descriptor: int, value: bytes) -> bytes:
    return b"\x00" + ulong(descriptor) + value


def composite(descriptor: int, fields: Sequence[bytes]) -> bytes:
    """A described list: every performative, delivery state and terminus is one (AMQP 1.4).

    Give all the fields: releases of the SDK before 7.15 do not fill in trailing ones that are left out.
    """
    return b"\x00\x53" + bytes((descriptor,)) + list_(fields)


def _variable(value: bytes, small: int) -> bytes:
    size = len(value)
    return (_UBYTE(small, size) if size < 256 else _UINT(small + 0x10, size)) + value


def _compound(small: int, body: bytes, count: int) -> bytes:
    """The size covers the count, which is as wide as the size."""
    if count < 256 and len(body) < 255:
        return bytes((small, len(body) + 1, count)) + body
    return _SIZE_AND_COUNT(small + 0x10, len(body) + 4, count) + body


def _array(constructor: int, body: bytes, count: int) -> bytes:
    return _compound(0xE0, bytes((constructor,)) + body, count)
