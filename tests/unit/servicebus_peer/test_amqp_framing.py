"""Frames and sections: however the bytes come in, the same values come out."""

from __future__ import annotations

from typing import Any

import pytest
from servicebus_peer import codes, encoding
from servicebus_peer.errors import AmqpError, DecodeError
from servicebus_peer.framing import (
    AMQP_HEADER,
    EMPTY,
    MAX_FRAME_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    Frame,
    FrameReader,
    Header,
    frame,
)
from servicebus_peer.message import parsed
from servicebus_peer.sections import body_of, sections_of, unbatched
from support.amqp_client import message

SAID = [
    SASL_HEADER,
    frame(0, encoding.composite(codes.SASL_INIT, [encoding.symbol("ANONYMOUS")]), SASL_FRAME),
    AMQP_HEADER,
    EMPTY,
    frame(3, encoding.composite(codes.TRANSFER, [encoding.uint(1)]) + b"payload"),
    EMPTY,
]
HEARD = [
    Header(SASL_HEADER),
    Frame(SASL_FRAME, 0, codes.SASL_INIT, ["ANONYMOUS"], b""),
    Header(AMQP_HEADER),
    Frame(0, 3, codes.TRANSFER, [1], b"payload"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100, 1000])
def test_frames_in_pieces_of_any_size(size: int) -> None:
    reader, data, heard = FrameReader(), b"".join(SAID), []
    for start in range(0, len(data), size):
        heard += list(reader.feed(data[start : start + size]))
    assert heard == HEARD


def test_frames_that_came_before_a_broken_one_are_heard() -> None:
    heard: list[Any] = []
    with pytest.raises(AmqpError, match="framing-error"):
        heard += FrameReader().feed(b"\xff" * 8)
    reader = FrameReader()
    found = reader.feed(b"".join(SAID) + b"\xff" * 8)
    assert [next(found) for _ in HEARD] == HEARD
    with pytest.raises(AmqpError, match="framing-error"):
        next(found)


def test_a_frame_has_a_largest_size() -> None:
    room = MAX_FRAME_SIZE - 8 - 4
    whole = frame(0, encoding.composite(codes.FLOW, []) + b"x" * room)
    assert [found.payload for found in FrameReader().feed(whole) if isinstance(found, Frame)] == [b"x" * room]
    with pytest.raises(AmqpError, match="framing-error"):
        list(FrameReader().feed(frame(0, encoding.composite(codes.FLOW, []) + b"x" * (room + 1))))


def test_an_extended_header_is_passed_over() -> None:
    body = encoding.composite(codes.FLOW, [])
    extended = (8 + 4 + len(body)).to_bytes(4, "big") + b"\x03\x00\x00\x00" + b"more" + body
    assert [found.code for found in FrameReader().feed(extended) if isinstance(found, Frame)] == [codes.FLOW]


def test_sections_of_a_message() -> None:
    payload = message(b"body", message_id="id")
    found = sections_of(payload)
    assert [section.code for section in found] == [codes.MESSAGE_ANNOTATIONS, codes.PROPERTIES, codes.DATA]
    assert (found[0].start, found[-1].end) == (0, len(payload))


@pytest.mark.parametrize(
    ("sections", "body"),
    [
        ([encoding.binary(b"a"), encoding.binary(b"b")], b"ab"),
        ([], b""),
    ],
)
def test_a_body_is_its_data_sections(sections: list[bytes], body: bytes) -> None:
    assert body_of(b"".join(encoding.described(codes.DATA, each) for each in sections)) == body


def test_a_body_of_another_kind_is_kept_as_it_is() -> None:
    value = encoding.described(codes.AMQP_VALUE, encoding.string("text"))
    assert body_of(value) == value
    assert parsed(value).body == value


def test_a_header_and_delivery_annotations_are_not_passed_on() -> None:
    header = encoding.composite(codes.HEADER, [encoding.TRUE, encoding.NULL, encoding.uint(1500)])
    hops = encoding.described(codes.DELIVERY_ANNOTATIONS, encoding.map_([]))
    sent = parsed(header + hops + message())
    assert (sent.durable, sent.ttl) == (True, 1.5)
    assert [section.code for section in sections_of(sent.encoded())] == [0x70, 0x72, 0x73, 0x75]


def test_a_batch_is_its_data_sections() -> None:
    parts = [message(b"a"), message(b"b")]
    batch = b"".join(encoding.described(codes.DATA, encoding.binary(part)) for part in parts)
    assert unbatched(batch) == parts
    with pytest.raises(DecodeError, match="something else"):
        unbatched(encoding.described(codes.DATA, encoding.string("text")))
