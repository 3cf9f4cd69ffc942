"""Bytes to values: the types of AMQP 1.0, part 1. They come from tests, so nothing is made of bytes that are no values.

In Python: numbers are int and float, a timestamp is an int (ms), a symbol is a `Symbol`, a list and an array are lists,
a map is a dict, a uuid is a UUID, decimals are their bytes, a described value is a `Described`.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple


class Symbol(str):
    """A string of AMQP's type symbol."""

    __slots__ = ()


class Described(NamedTuple):
    """A value and what it is: mostly the number of a type from `codes`."""

    descriptor: object
    value: object


Reader = Callable[[bytes, int], tuple[Any, int]]
"""(bytes, offset behind the constructor) to (value, offset behind it)."""

_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""Bytes of a value, by the upper half of its constructor: AMQP 1.2."""


def decode(data: bytes, offset: int = 0) -> tuple[object, int]:
    """The value at `offset`, and the offset behind it."""
    kind = data[offset]
    if kind == 0:
        descriptor, offset = decode(data, offset + 1)
        value, offset = decode(data, offset)
        return Described(descriptor, value), offset
    return _READERS[kind](data, offset + 1)


def end_of(data: bytes, offset: int) -> int:
    """The offset behind the value at `offset`, which is not looked into."""
    kind = data[offset]
    if kind == 0:
        return end_of(data, end_of(data, offset + 1))
    width = _WIDTHS.get(kind >> 4)
    if width is not None:
        return offset + 1 + width
    size, start = _size(data, offset + 1, kind >> 4 in (0xB, 0xD, 0xF))
    return start + size


def pairs_of(data: bytes, offset: int) -> list[tuple[str, bytes]]:
    """Of the map at `offset`, whose keys are strings or symbols: each key, and the bytes of key and value together."""
    if data[offset] == 0x40:
        return []
    count, at, _ = _header(data, offset + 1, data[offset] == 0xD1)
    pairs: list[tuple[str, bytes]] = []
    for _ in range(count // 2):
        key, behind = decode(data, at)
        start, at = at, end_of(data, behind)
        pairs.append((str(key), data[start:at]))
    return pairs


def _size(data: bytes, offset: int, wide: bool) -> tuple[int, int]:
    return (struct.unpack_from(">I", data, offset)[0], offset + 4) if wide else (data[offset], offset + 1)


def _header(data: bytes, offset: int, wide: bool) -> tuple[int, int, int]:
    """Of a list, map or array: how many, where they begin, where they end."""
    size, offset = _size(data, offset, wide)
    count, start = _size(data, offset, wide)
    return count, start, offset + size


def _constant(value: object) -> Reader:
    return lambda _data, offset: (value, offset)


def _number(layout: str) -> Reader:
    shape = struct.Struct(layout)
    return lambda data, offset: (shape.unpack_from(data, offset)[0], offset + shape.size)


def _fixed(width: int, make: Callable[[bytes], object]) -> Reader:
    return lambda data, offset: (make(data[offset : offset + width]), offset + width)


def _variable(wide: bool, make: Callable[[bytes], object]) -> Reader:
    def read(data: bytes, offset: int) -> tuple[object, int]:
        size, offset = _size(data, offset, wide)
        return make(data[offset : offset + size]), offset + size

    return read


def _items(wide: bool) -> Reader:
    def read(data: bytes, offset: int) -> tuple[list[object], int]:
        count, offset, end = _header(data, offset, wide)
        items = []
        for _ in range(count):
            item, offset = decode(data, offset)
            items.append(item)
        return items, end

    return read


def _map(wide: bool) -> Reader:
    items = _items(wide)

    def read(data: bytes, offset: int) -> tuple[object, int]:
        found, end = items(data, offset)
        return dict(zip(found[::2], found[1::2], strict=True)), end

    return read


def _array(wide: bool) -> Reader:
    def read(data: bytes, offset: int) -> tuple[object, int]:
        count, offset, end = _header(data, offset, wide)
        reader = _READERS[data[offset]]
        offset += 1
        items = []
        for _ in range(count):
            item, offset = reader(data, offset)
            items.append(item)
        return items, end

    return read


def _text(raw: bytes) -> str:
    return raw.decode()


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def _uuid(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


def _truth(raw: bytes) -> bool:
    return raw != b"\x00"


_READERS: dict[int, Reader] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: lambda _data, offset: ([], offset),  # a new list every time
    0x50: _number(">B"),
    0x51: _number(">b"),
    0x52: _number(">B"),
    0x53: _number(">B"),
    0x54: _number(">b"),
    0x55: _number(">b"),
    0x56: _fixed(1, _truth),
    0x60: _number(">H"),
    0x61: _number(">h"),
    0x70: _number(">I"),
    0x71: _number(">i"),
    0x72: _number(">f"),
    0x73: _number(">I"),
    0x74: _fixed(4, bytes),
    0x80: _number(">Q"),
    0x81: _number(">q"),
    0x82: _number(">d"),
    0x83: _number(">q"),
    0x84: _fixed(8, bytes),
    0x94: _fixed(16, bytes),
    0x98: _fixed(16, _uuid),
    0xA0: _variable(False, bytes),
    0xA1: _variable(False, _text),
    0xA3: _variable(False, _symbol),
    0xB0: _variable(True, bytes),
    0xB1: _variable(True, _text),
    0xB3: _variable(True, _symbol),
    0xC0: _items(False),
    0xC1: _map(False),
    0xD0: _items(True),
    0xD1: _map(True),
    0xE0: _array(False),
    0xF0: _array(True),
}
"""By constructor: AMQP 1.6."""
