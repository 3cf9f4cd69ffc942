"""The codec of the peer: what is encoded is decoded as it was, and no bytes hang or break it."""

from __future__ import annotations

import math
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.decoding import DEPTH, MOST_EMPTY, Described, Symbol, decode, end_of, pairs_of
from servicebus_peer.errors import DecodeError

ASCII = st.text(st.characters(max_codepoint=127), max_size=280)

PLAIN: st.SearchStrategy[tuple[bytes, Any]] = st.one_of(
    st.just((e.NULL, None)),
    st.booleans().map(lambda v: (e.boolean(v), v)),
    st.integers(0, 255).map(lambda v: (e.ubyte(v), v)),
    st.integers(0, 0xFFFF).map(lambda v: (e.ushort(v), v)),
    st.integers(0, 0xFFFFFFFF).map(lambda v: (e.uint(v), v)),
    st.integers(0, 2**64 - 1).map(lambda v: (e.ulong(v), v)),
    st.integers(-(2**31), 2**31 - 1).map(lambda v: (e.int_(v), v)),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: (e.long(v), v)),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: (e.timestamp(v), v)),
    st.floats(allow_nan=False).map(lambda v: (e.double(v), v)),
    st.uuids().map(lambda v: (e.uuid(v), v)),
    st.binary(max_size=280).map(lambda v: (e.binary(v), v)),
    st.text(max_size=280).map(lambda v: (e.string(v), v)),
    ASCII.map(lambda v: (e.symbol(v), Symbol(v))),
)
"""Pairs of an encoding and the value that it is of."""


def compound(inner: st.SearchStrategy[tuple[bytes, Any]]) -> st.SearchStrategy[tuple[bytes, Any]]:
    key = st.text(max_size=20)
    lists = st.lists(inner, max_size=6).map(lambda items: (e.list_([i[0] for i in items]), [i[1] for i in items]))
    maps = st.dictionaries(key, inner, max_size=6).map(
        lambda items: (
            e.map_((e.string(name), item[0]) for name, item in items.items()),
            {name: item[1] for name, item in items.items()},
        )
    )
    described = st.tuples(st.integers(0, 255), inner).map(
        lambda pair: (e.described(pair[0], pair[1][0]), Described(pair[0], pair[1][1]))
    )
    return lists | maps | described


VALUES = st.recursive(PLAIN, compound, max_leaves=8)

QUICK = settings(max_examples=60)


@QUICK
@given(VALUES)
def test_what_is_encoded_is_decoded(pair: tuple[bytes, Any]) -> None:
    encoded, value = pair

    assert decode(encoded) == (value, len(encoded))
    assert end_of(encoded, 0) == len(encoded)


@QUICK
@given(VALUES, st.binary(max_size=8))
def test_it_ends_where_it_ends_whatever_follows(pair: tuple[bytes, Any], tail: bytes) -> None:
    encoded, value = pair

    assert decode(encoded + tail) == (value, len(encoded))


@QUICK
@given(VALUES)
def test_cut_anywhere_it_is_an_error(pair: tuple[bytes, Any]) -> None:
    encoded, _ = pair

    for size in range(0, len(encoded), max(1, len(encoded) // 50)):
        with pytest.raises(DecodeError):
            decode(encoded[:size])
        with pytest.raises(DecodeError):
            end_of(encoded[:size], 0)


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    for read in (decode, end_of, pairs_of):
        try:
            read(data, 0)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (e.array_of_longs([1, -1, 2**62]), [1, -1, 2**62]),
        (e.array_of_timestamps([0]), [0]),
        (e.array_of_uuids([uuid.UUID(int=7)] * 40), [uuid.UUID(int=7)] * 40),
        (e.array_of_symbols(["a", "bc"]), ["a", "bc"]),
        (b"\xe0\x02\x00\x56", []),
        (b"\xe0\x05\x03\x56\x01\x00\x01", [True, False, True]),
        (b"\xe0\x07\x02\x00\x53\x24\x50\x07\x08", None),
    ],
    ids=["long", "timestamp", "uuid, wide", "symbol", "empty", "boolean", "described"],
)
def test_arrays(array: bytes, values: list[Any] | None) -> None:
    expected = [Described(0x24, 7), Described(0x24, 8)] if values is None else values
    assert decode(array) == (expected, len(array))


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x41", True),
        (b"\x56\x00", False),
        (b"\x51\xff", -1),
        (b"\x61\xff\xfe", -2),
        (b"\x72\x3f\x80\x00\x00", 1.0),
        (b"\x73\x00\x00\x00\x41", 65),
        (b"\x74abcd", b"abcd"),
        (b"\x84abcdefgh", b"abcdefgh"),
        (b"\x94" + b"abcdefgh" * 2, b"abcdefgh" * 2),
        (b"\xb3\x00\x00\x00\x01a", "a"),
    ],
)
def test_types_that_are_only_read(data: bytes, value: Any) -> None:
    assert decode(data) == (value, len(data))


def test_a_not_a_number_is_one() -> None:
    value, _ = decode(e.double(math.nan))
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "end within"),
        (b"\x3f", "constructor"),
        (b"\xff", "constructor"),
        (b"\xa1\x02\xff\xfe", "utf-8"),
        (b"\xa3\x01\xe9", "ascii"),
        (b"\xb0\xff\xff\xff\xff", "end within"),
        (b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff", "end within"),
        (b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff", "4294967295 values"),
        (b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40", "4294967295 values"),
        (b"\xc0\x03\x01\x40\x40", "size that it says"),
        (b"\xc1\x02\x01\x40", "without a value"),
        (b"\xc1\x03\x02\x45\x40", "a key"),
        (b"\x00\x53\x10" * (DEPTH + 2) + b"\x40", "nested"),
        (b"\x00" * 5000, "nested"),
        (b"\xc0\x05", "end within"),
        (b"\xe0\x02\x01\x3f", "constructor"),
    ],
)
def test_hostile_bytes(data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode(data)


def test_values_of_no_bytes_are_few() -> None:
    size = (5).to_bytes(4, "big")
    assert decode(b"\xf0" + size + MOST_EMPTY.to_bytes(4, "big") + b"\x40")[0] == [None] * MOST_EMPTY
    with pytest.raises(DecodeError, match="values are said to be in 5 bytes"):
        decode(b"\xf0" + size + (MOST_EMPTY + 1).to_bytes(4, "big") + b"\x40")


def test_pairs_are_the_bytes_of_keys_and_values() -> None:
    one, two = e.symbol("a") + e.uint(1), e.string("b") + e.list_([])
    for encoded in (
        e.map_of([one, two]),
        b"\xd1" + (4 + len(one + two)).to_bytes(4, "big") + b"\0\0\0\x04" + one + two,
    ):
        assert pairs_of(encoded, 0) == [("a", one), ("b", two)]
    assert pairs_of(e.NULL, 0) == []
    with pytest.raises(DecodeError, match="no map"):
        pairs_of(e.list_([e.NULL]), 0)


def test_a_composite_has_a_short_descriptor() -> None:
    assert e.composite(codes.ACCEPTED, []) == b"\x00\x53\x24\x45"
