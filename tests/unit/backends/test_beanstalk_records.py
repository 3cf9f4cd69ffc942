"""Headers of beanstalkd jobs: what is written is read again, and nothing that others write does harm."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jobpool.broker.values import NewMessage
from jobpool.message.names import storable
from jobpool_backends.beanstalk.records import HEADER_ROOM, ForeignRecord, Record, from_bytes, new_bytes, to_bytes

BODY = b'{"job":"report",\n"payload":1}'
LARGEST = 65535
PLAIN = NewMessage("a" * 16, given=False, queue="mails", handler="report", priority=5, due=None, body=BODY)
FULL = Record("order-17", 1.5, 3, 2, 9, 1.25, "boom", "SIGSEGV", "timeout", 2.5)

TEXTS = st.none() | st.text(max_size=30).filter(bool).map(storable)
COUNTS = st.integers(0, 10**6)
TIMES = st.integers(0, 2**42).map(lambda micros: micros / 1024)


@given(st.builds(Record, st.from_regex(r"[a-z0-9]{16}", fullmatch=True), TIMES, COUNTS, COUNTS, COUNTS, TIMES, TEXTS,
                 TEXTS, TEXTS, st.none() | TIMES), st.binary(max_size=60))  # fmt: skip
def test_what_is_written_is_read(record: Record, body: bytes) -> None:
    read, got = from_bytes(to_bytes(record, body, LARGEST), 1)
    assert read == replace(record, enqueued_at=round(record.enqueued_at, 6))
    assert got == body


def test_a_new_message_has_the_shortest_header() -> None:
    packed = new_bytes(PLAIN, 12.25, 12.25, LARGEST)
    assert packed == b'{"jobpool":1,"id":"aaaaaaaaaaaaaaaa","at":12.250000}\n' + BODY
    assert from_bytes(packed, 1) == (Record("a" * 16, 12.25), BODY)


def test_what_a_message_brings_from_another_queue_is_in_its_header() -> None:
    brought = replace(PLAIN, attempts=2, crashes=1, deliveries=4, last_error="boom", cause="SIGBUS")
    record, body = from_bytes(new_bytes(brought, 12.0, 20.0, LARGEST), 1)
    assert record == Record("a" * 16, 12.0, 2, 1, 4, 20.0, "boom", "SIGBUS")
    assert body == BODY


def test_what_has_no_good_header_is_all_body() -> None:
    for packed in [
        b"",
        b"hello",
        b"\xff\xfe\n\x00",
        b'{"job":"report","payload":1}',
        b'{"jobpool":1,"id":"x","at":1.0}',
        b'{"jobpool":2,"id":"x","at":1.0}\nbody',
        b'{"jobpool":1,"at":1.0}\nbody',
        b'{"jobpool":1,"id":7,"at":1.0}\nbody',
        b'{"jobpool":1,"id":"x","at":"now"}\nbody',
        b'{"jobpool":1,"id":"x","at":true}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"attempts":1.5}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"error":[]}\nbody',
        b'{"jobpool":1,"id":"","at":1.0}\nbody',
        b'{"jobpool":1,"id":"a b","at":1.0}\nbody',
        b'{"jobpool":1,"id":"\\u001b[2J","at":1.0}\nbody',
        b'{"jobpool":1,"id":"x","at":-1.0}\nbody',
        b'{"jobpool":1,"id":"x","at":1e300}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"attempts":-1}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"attempts":4294967296}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"crashes":2147483648}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"deliveries":-5}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"deliveries":18446744073709551615}\nbody',
        b'{"jobpool":1,"id":"x","at":1.0,"died_at":1e18}\nbody',
        b'{"jobpool":1,\nbody',
        b'{"jobpool":' + b"[" * 10**5 + b"\nbody",
    ]:
        assert from_bytes(packed, 41) == (ForeignRecord("beanstalkd-41", 0.0), packed), packed


def test_counters_at_their_bounds_stay_readable() -> None:
    record, _ = from_bytes(to_bytes(Record("x", 1.0, 2**31, 2**32, 2**63), b"", LARGEST), 1)
    assert record == Record("x", 1.0, 2**31 - 1, 2**31 - 1, 2**62 - 1)


def test_a_header_of_a_later_version_with_more_in_it_is_read() -> None:
    record, _ = from_bytes(b'{"jobpool":1,"id":"x","at":1,"attempts":2,"colour":"red"}\n', 1)
    assert record == Record("x", 1.0, attempts=2)


def test_texts_are_cut_to_the_servers_limit_and_the_body_never() -> None:
    record = replace(FULL, last_error="e" * 9000 + "end", cause="c" * 5000)
    packed = to_bytes(record, b"b" * 60000, LARGEST)
    assert len(packed) <= LARGEST
    read, body = from_bytes(packed, 1)
    assert body == b"b" * 60000
    assert read.last_error
    assert read.last_error.startswith("eee")
    assert read.last_error.endswith("end")
    assert "…" in read.last_error
    assert (read.reason, read.attempts) == ("timeout", 3)
    assert len(orjson.dumps(read.last_error)) > 1000  # no more than is needed


def test_the_largest_new_message_has_room_for_the_header_of_a_copy_that_went_through_all() -> None:
    body = b"b" * (LARGEST - HEADER_ROOM)
    record = Record("i" * 128, 1.8e9 + 0.123456, 99, 9, 9999, 1.8e9, "e" * 9000, "\x00" * 9000, "r" * 100, 1.8e9 + 0.5)
    assert len(to_bytes(record, body, LARGEST)) <= LARGEST
