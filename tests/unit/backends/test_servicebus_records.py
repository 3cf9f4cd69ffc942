"""What a message of Service Bus carries: header, envelope, and the death record of a dead letter."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import orjson
from azure.servicebus import ServiceBusReceivedMessage
from msgspec.structs import replace

from jobpool.broker.values import NewMessage, ReapPolicy
from jobpool.clock import ManualClock
from jobpool_backends.servicebus import records
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.enqueue import Producer
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.records import Record, charge, copy_id, read
from jobpool_backends.shared import cut

NOW = 1_800_000_000.0
MICRO = 1_000_000
ENVELOPE = b'{"job":"mail","payload":{"to":"a@b"}}'
PLAIN = Record("0123456789abcdef", 7, "mail", 5, body=ENVELOPE)
FULL = Record("i", 8, "mail", 3, 2, 1, 9, 4, "boom", "SIGSEGV", body=ENVELOPE)


def received(body: object, **fields: Any) -> ServiceBusReceivedMessage:
    """What the SDK hands out, as far as a record is read from it."""
    unset = dict.fromkeys(("message_id", "sequence_number", "enqueued_time_utc", "dead_letter_reason"))
    told = {**unset, "dead_letter_error_description": None, "body": body, **fields}
    return cast("ServiceBusReceivedMessage", SimpleNamespace(**told))


def test_a_plain_message_has_a_short_header() -> None:
    header, _, body = PLAIN.write().partition(b"\n")
    assert body == ENVELOPE
    assert len(header) < 80


def test_what_is_written_is_read() -> None:
    odd = Record("i", 1, "", 5, last_error="tab\tand\nline ü€😀", body=b"{}")
    for record in (PLAIN, FULL, odd):
        assert read(received(iter([record.write()[:9], record.write()[9:]]))) == record


def test_what_a_later_version_adds_is_left_alone() -> None:
    later = PLAIN.write().replace(b'{"jobpool":1,', b'{"jobpool":1,"new":[1],')
    assert read(received([later])) == PLAIN


def test_what_another_program_put_there_keeps_its_body_and_gets_an_id() -> None:
    for body in [
        b"",
        b"\xff\xfe",
        ENVELOPE,
        b'{"jobpool":1}\n{}',
        b'{"jobpool":1,"id":"x"',
        b'{"jobpool":2,"id":"x","at":1,"job":"j","p":5}\n{}',
        b'{"jobpool":1,"id":"x","at":[],"job":"j","p":5}\n{}',
        b'{"jobpool":[]}',
    ]:
        sent = datetime.fromtimestamp(NOW, UTC)
        record = read(received([body], sequence_number=12, enqueued_time_utc=sent))
        assert (record.id, record.body, record.enqueued_at) == ("seq-12", body, int(NOW) * MICRO), body
        assert read(received([body], message_id="theirs")).id == "theirs", body


HOSTILE = [
    *[{name: value} for name in ("a", "c", "d", "p") for value in (-1, 2**31, 1.5, "1", None, True)],
    *[{name: value} for name in ("at", "x") for value in (-1, 1e300, 2**62, "now")],
    *[{name: 7} for name in ("e", "k", "job", "id")],
    {"id": ""},
    {"id": "a\x1b[2J"},
]


def test_a_header_that_we_would_not_write_is_none() -> None:
    """Nobody signs it: who reaches the queue can send any."""
    line, _, body = FULL.write().partition(b"\n")
    for change in HOSTILE:
        forged = orjson.dumps(orjson.loads(line) | change) + b"\n" + body
        record = read(received([forged], message_id="from-outside"))
        told = (record.id, record.body, record.attempts, record.last_error)
        assert told == ("from-outside", forged, 0, None), change


def test_an_epitaph_that_we_would_not_write_is_a_text() -> None:
    written = orjson.loads(replace(PLAIN, last_error="boom").death_record(9))
    for change in ({"attempts": -1}, {"crashes": 2**40}, {"error": 7}, {"died_at": "x"}):
        epitaph = orjson.dumps(written | change).decode()
        dead = received([PLAIN.write()], dead_letter_reason="failed", dead_letter_error_description=epitaph)
        record = read(dead)
        assert (record.died_at, record.attempts, record.last_error) == (None, 0, epitaph), change


def test_an_odd_id_or_body_of_another_program_s_is_no_error() -> None:
    for ident in ("a b", "\x1b[2J", "", None):
        assert read(received([b"{}"], message_id=ident, sequence_number=7)).id == "seq-7", ident
    for body in ("a text", {b"a": 1}, [["a", 1]], None):
        assert isinstance(read(received(body)).body, bytes), body


def test_a_dead_letter_tells_how_it_died() -> None:
    told = replace(FULL, last_error="the end", cause="SIGKILL").death_record(99)
    dead = read(received([FULL.write()], dead_letter_reason="timeout", dead_letter_error_description=told))
    assert (dead.reason, dead.died_at, dead.last_error, dead.cause) == ("timeout", 99, "the end", "SIGKILL")
    assert (dead.attempts, dead.crashes, dead.deliveries, dead.body) == (2, 1, 4, ENVELOPE)


def test_a_death_that_was_not_ours() -> None:
    for reason, word in [
        ("MaxDeliveryCountExceeded", "crash-limit"),
        ("TTLExpiredException", "expired"),
        ("theirs", "theirs"),
    ]:
        dead = read(received([FULL.write()], dead_letter_reason=reason, dead_letter_error_description="{ said so"))
        assert (dead.reason, dead.last_error, dead.died_at) == (word, "boom", None), reason
        bare = read(received([PLAIN.write()], dead_letter_reason=reason, dead_letter_error_description="said so"))
        assert bare.last_error == "said so", reason


def test_an_epitaph_is_never_too_long() -> None:
    for error in ("x" * 100_000, "\x00" * 100_000, "😀" * 9_000, '"' * 5_000):
        told = replace(FULL, last_error=error, cause=error).death_record(99)
        assert len(told) <= records.MAX_DEATH_RECORD_CHARS, error[:1]
        dead = read(received([FULL.write()], dead_letter_reason="r", dead_letter_error_description=told))
        assert (dead.died_at, dead.attempts) == (99, 2), error[:1]


def test_texts_are_cut_in_the_middle_and_the_body_never() -> None:
    long = "begin" + "x" * 100_000 + "end"
    assert (cut(long, 20) or "").startswith("begin")
    assert (cut(long, 20) or "").endswith("end")
    assert len(cut(long, 20) or "") <= 20
    record = Record("i", 1, "", 5, last_error=long, cause=long, body=b"b" * 9_000).fits(12_000)
    assert record.size < 12_000
    assert record.body == b"b" * 9_000
    assert PLAIN.fits(1) == PLAIN


def test_each_copy_has_an_id_of_its_own() -> None:
    copies = [copy_id("i", place, number) for place in "qd" for number in (1, 2)] + [copy_id("j", "q", 1)]
    assert len(set(copies)) == len(copies)
    assert copy_id("i", "q", 1) == copies[0]
    assert len(copy_id("x" * 128, "q", 2**63)) <= records.MAX_MESSAGE_ID_CHARS
    assert copy_id("x" * 128, "q", 1) != copy_id("x" * 127 + "y", "q", 1)


def test_a_delay_is_rounded_up_to_a_millisecond_and_never_ends_the_world() -> None:
    due = PLAIN.message(due=NOW + 0.0001).scheduled_enqueue_time_utc
    assert due == datetime.fromtimestamp(NOW + 0.001, UTC)
    assert PLAIN.message().scheduled_enqueue_time_utc is None
    assert PLAIN.message(due=1e15).scheduled_enqueue_time_utc == datetime(9999, 1, 1, tzinfo=UTC)


def test_no_two_messages_are_enqueued_at_the_same_moment() -> None:
    clock = ManualClock(NOW)
    producer = Producer(Namespace(Address("shop")), clock)
    drawn = []
    for seconds in (0.0, 0.0, -5.0, 6.0):
        clock.set_wall(seconds)
        drawn.append(producer.outgoing(NewMessage("i", False, "mails", "mail", 5, None, ENVELOPE)).record.enqueued_at)
    assert drawn == [NOW * MICRO, NOW * MICRO + 1, NOW * MICRO + 2, (NOW + 1) * MICRO]


# --- crashes -----------------------------------------------------------------------------------------


def test_a_crash_long_after_the_last_one_is_the_first() -> None:
    policy = ReapPolicy(window=100.0)
    once = charge(FULL, policy, "a", int(NOW) * MICRO)
    assert charge(once, policy, "b", int(NOW + 100) * MICRO).crashes == 2
    assert charge(once, policy, "b", int(NOW + 101) * MICRO).crashes == 1
