"""What `decoding` reads values by: a function for each constructor. They raise what it turns into `DecodeError`."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

from servicebus_peer.errors import DecodeError
from servicebus_peer.values import Described, Symbol

DEPTH = 32
MOST_EMPTY = 4096

Reader = Callable[[bytes, int, int], tuple[object, int]]
"""(bytes, offset behind the constructor, depth) to (value, offset behind it)."""

_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""Bytes of a value, by the upper half of its constructor: AMQP 1.2."""


def value_end(data: bytes, offset: int, depth: int) -> int:
    kind = data[offset]
    if kind == 0:
        return value_end(data, value_end(data, offset + 1, _deeper(depth)), _deeper(depth))
    width = _WIDTHS.get(kind >> 4)
    if width is not None:
        return offset + 1 + width
    if kind >> 4 in (0xA, 0xC, 0xE):
        return offset + 2 + data[offset + 1]
    if kind >> 4 in (0xB, 0xD, 0xF):
        return int(offset + 5 + struct.unpack_from(">I", data, offset + 1)[0])
    raise DecodeError(f"0x{kind:02x} is not a constructor of a value")


def read_value(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    kind = data[offset]
    if kind == 0:
        return _described(data, offset + 1, _deeper(depth))
    return _reader(kind)(data, offset + 1, depth)


def _reader(kind: int) -> Reader:
    reader = _READERS[kind]
    if reader is None:
        raise DecodeError(f"0x{kind:02x} is not a constructor of a value")
    return reader


def _deeper(depth: int) -> int:
    if depth == 0:
        raise DecodeError(f"values are nested more than {DEPTH} deep")
    return depth - 1


def _described(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    descriptor, offset = read_value(data, offset, depth)
    value, offset = read_value(data, offset, depth)
    return Described(descriptor, value), offset


def _constant(value: object) -> Reader:
    return lambda _data, offset, _depth: (value, offset)


def _number(layout: str) -> Reader:
    shape = struct.Struct(layout)
    unpack, width = shape.unpack_from, shape.size
    return lambda data, offset, _depth: (unpack(data, offset)[0], offset + width)


def _bytes(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise DecodeError("the bytes end within a value")
    return data[offset : offset + size]


def _fixed(width: int, make: Callable[[bytes], object]) -> Reader:
    return lambda data, offset, _depth: (make(_bytes(data, offset, width)), offset + width)


def _variable(wide: bool, make: Callable[[bytes], object]) -> Reader:
    def read(data: bytes, offset: int, _depth: int) -> tuple[object, int]:
        size, offset = _size(data, offset, wide)
        return make(_bytes(data, offset, size)), offset + size

    return read


def _size(data: bytes, offset: int, wide: bool) -> tuple[int, int]:
    return (struct.unpack_from(">I", data, offset)[0], offset + 4) if wide else (data[offset], offset + 1)


def read_header(data: bytes, offset: int, wide: bool) -> tuple[int, int, int]:
    """Of a list, map or array: how many, where they begin, where they end. Each takes a byte, or there are few."""
    size, offset = _size(data, offset, wide)
    end = offset + size
    count, offset = _size(data, offset, wide)
    if end > len(data):
        raise DecodeError("the bytes end within a value")
    if count > max(size, MOST_EMPTY):
        raise DecodeError(f"{count} values are said to be in {size} bytes")
    return count, offset, end


def _ended(offset: int, end: int) -> int:
    if offset != end:
        raise DecodeError("a list, map or array does not have the size that it says")
    return end


def _items(wide: bool) -> Reader:
    def read(data: bytes, offset: int, depth: int) -> tuple[object, int]:
        depth = _deeper(depth)
        count, offset, end = read_header(data, offset, wide)
        items = []
        for _ in range(count):
            item, offset = read_value(data, offset, depth)
            items.append(item)
        return items, _ended(offset, end)

    return read


def _map(wide: bool) -> Reader:
    items = _items(wide)

    def read(data: bytes, offset: int, depth: int) -> tuple[object, int]:
        found, end = items(data, offset, depth)
        assert isinstance(found, list)
        if len(found) % 2:
            raise DecodeError("a map has a key without a value")
        return dict(zip(found[::2], found[1::2], strict=True)), end

    return read


def _array(wide: bool) -> Reader:
    def read(data: bytes, offset: int, depth: int) -> tuple[object, int]:
        depth = _deeper(depth)
        count, offset, end = read_header(data, offset, wide)
        descriptor: object = None
        described = data[offset] == 0
        if described:
            descriptor, offset = read_value(data, offset + 1, depth)
        reader = _reader(data[offset])
        offset += 1
        items = []
        for _ in range(count):
            item, offset = reader(data, offset, depth)
            items.append(Described(descriptor, item) if described else item)
        return items, _ended(offset, end)

    return read


def _text(raw: bytes) -> str:
    return raw.decode()


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def _uuid(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


def _truth(raw: bytes) -> bool:
    return raw != b"\x00"


_KNOWN: dict[int, Reader] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: lambda _data, offset, _depth: ([], offset),  # a new list every time
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

_READERS: list[Reader | None] = [_KNOWN.get(kind) for kind in range(256)]
