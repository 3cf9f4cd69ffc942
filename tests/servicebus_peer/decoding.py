"""Bytes to values: the types of AMQP 1.0, part 1.

Whatever the bytes, each function returns or raises `DecodeError`, soon: sizes are checked before anything is made of
them, values are nested at most `DEPTH` deep, and elements that take no bytes are at most `MOST_EMPTY`.

In Python: numbers are int and float, a timestamp is an int (ms), a symbol is a `Symbol`, a list and an array are lists,
a map is a dict, a uuid is a UUID, decimals are their bytes, a described value is a `Described`.
"""

from __future__ import annotations

import struct

from servicebus_peer.errors import DecodeError
from servicebus_peer.readers import DEPTH as DEPTH
from servicebus_peer.readers import MOST_EMPTY as MOST_EMPTY
from servicebus_peer.readers import read_header, read_value, value_end
from servicebus_peer.values import Described as Described
from servicebus_peer.values import Symbol as Symbol


def decode(data: bytes, offset: int = 0) -> tuple[object, int]:
    """The value at `offset`, and the offset behind it."""
    try:
        return read_value(data, offset, DEPTH)
    except (IndexError, struct.error):
        raise DecodeError("the bytes end within a value") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"a string is not {error.encoding}") from None
    except TypeError:
        raise DecodeError("a map has a key that is itself a map, a list or an array") from None


def end_of(data: bytes, offset: int) -> int:
    """The offset behind the value at `offset`, which is not looked into."""
    try:
        end = value_end(data, offset, DEPTH)
    except (IndexError, struct.error):
        end = len(data) + 1
    if end > len(data):
        raise DecodeError("the bytes end within a value")
    return end


def pairs_of(data: bytes, offset: int) -> list[tuple[str, bytes]]:
    """Of the map at `offset`, whose keys are strings or symbols: each key, and the bytes of key and value together."""
    kind = data[offset : offset + 1]
    if kind == b"\x40":
        return []
    if kind not in (b"\xc1", b"\xd1"):
        raise DecodeError("there is no map where one belongs")
    try:
        count, at, end = read_header(data, offset + 1, kind == b"\xd1")
    except (IndexError, struct.error):
        raise DecodeError("the bytes end within a value") from None
    pairs: list[tuple[str, bytes]] = []
    while at < end:
        key, behind = decode(data, at)
        if not isinstance(key, str):
            raise DecodeError("a map of annotations or properties has a key that is not a string")
        start, at = at, end_of(data, behind)
        pairs.append((key, data[start:at]))
    if 2 * len(pairs) != count or at != end:
        raise DecodeError("a map does not have the size that it says")
    return pairs
