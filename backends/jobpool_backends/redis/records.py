"""A message as Redis keeps it: its member, its record, its notes. `keyspace` describes them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

import orjson
from msgspec.structs import asdict

from jobpool.broker.claim_store import QueueMessage
from jobpool.broker.values import Message, NewMessage, State
from jobpool.errors import ConfigurationError
from jobpool_backends.shared import MICRO, body_or_oversized, micros, unix_time

Key = TypeVar("Key", bound=Hashable)

MEMBER_CHARS = 19
HOLDER_CHARS = 16  # of an owner token
TAG_BYTES = 32  # before the record of a leased message: holder, ttl and two spaces

TIES_PER_SEQUENCE = 1000
PRIORITIES = tuple(f"{priority:03d}" for priority in range(256))

_TAG = re.compile(rb"[0-9a-f]{16} \d{14} ")  # before the record of a leased message
_STATES = {b"w": State.WAITING, b"d": State.DELAYED, b"l": State.LEASED, b"c": State.LEASED, b"x": State.DEAD}
_MAX_DUE_US = 9_000_000_000_000_000  # in the year 2255: a sorted set's score cannot tell later microseconds apart


class Row(NamedTuple):
    """One message, as `message_read.lua` answers."""

    member: str
    stored: bytes  # the record as it is, leased or not
    since: int  # Unix time in µs of its death; of a message that is not dead, of its enqueue
    notes: dict[str, str]
    message: Message


def queue_message(message: Message) -> QueueMessage:
    return QueueMessage(**{name: getattr(message, name) for name in QueueMessage.__struct_fields__})


def read_row(queue: str, member: str, answer: list[Any]) -> Row | None:
    """Return a row from what `message_read.lua` says of one message; None when it is gone.

    One that was changed by hand has counters that cannot be true, as in `record_parts.lua`. Raises `ConfigurationError`
    where its keys do not fit together: Redis has evicted some of them.
    """
    letter, moment, stored, packed, body = answer
    if stored is None:
        return None
    try:
        return _read_row(queue, member, letter, moment, stored, packed, body)
    except (ValueError, LookupError, TypeError, OverflowError):
        record = bytes(TAG_BYTES if letter == b"l" else 0) + f"0 -1 0 - 0 m{member} ?".encode()
        return _read_row(queue, member, letter, None, record, packed, body)._replace(stored=stored)


def _read_row(
    queue: str, member: str, letter: bytes, moment: Any, stored: bytes, packed: bytes | None, body: bytes | int | None
) -> Row:
    record = stored[TAG_BYTES:] if letter == b"l" else stored
    if letter != b"l" and _TAG.match(record):
        raise ConfigurationError(
            f"Redis has lost keys of queue {queue!r}, as it does when it evicts them: a message is leased, and the"
            " list of leases is gone. Set maxmemory-policy noeviction, and enqueue again what is missing"
        )
    deliveries, attempts, crashes, available, enqueued, ident, rest = record.decode(errors="replace").split(" ", 6)
    handler, claims, ends_at, claim = read_tail(rest)
    state = _STATES[letter]
    died_at = int(moment) if state is State.DEAD and moment is not None else None
    notes = _read_notes(packed) if packed else {}
    message = Message(
        id=ident[1:],
        queue=queue,
        state=state,
        handler=handler,
        priority=int(member[:3]) if member[:3].isdecimal() else 0,
        attempts=int(attempts),
        crashes=int(crashes),
        deliveries=int(deliveries),
        enqueued_at=int(enqueued) / MICRO,
        available_at=int(enqueued if available == "-" else available) / MICRO,
        body=body_or_oversized(body),
        reason=notes.get("reason"),
        last_error=notes.get("error"),
        cause=notes.get("forfeited") or notes.get("cause"),
        died_at=unix_time(died_at),
        expires_at=unix_time(moment and int(moment)) if state is State.LEASED else None,
        claim=claim if letter == b"c" else None,
        claims=claims,
        ends_at=unix_time(ends_at),
        cursor=cursor_of(queue, member),
    )
    return Row(member, stored, int(enqueued) if died_at is None else died_at, notes, message)


def _read_notes(packed: bytes) -> dict[str, str]:
    try:
        return {name: text for name, text in orjson.loads(packed).items() if isinstance(text, str)}
    except (ValueError, AttributeError):
        return {}


def tie_of(queue: str) -> int:
    """Return the number that tells queues apart in the enqueue order that gave the same sequence at once."""
    return zlib.crc32(queue.encode()) % TIES_PER_SEQUENCE


def cursor_of(queue: str, member: str) -> str:
    return f"{member[3:]}{tie_of(queue):03d}"


def member_of(message: Message) -> str:
    return PRIORITIES[message.priority] + message.cursor[: MEMBER_CHARS - 3]


def read_tail(rest: str) -> tuple[str, int, int | None, str]:
    """Parse the end of a record: handler, number of claims, end of life in µs, claim ('-' for none)."""
    handler, has_more, more = rest.partition("\n")
    if not has_more:
        return handler, 0, None, "-"
    claims, life, claim = more.split(" ")
    return handler, int(claims), None if life == "-" else int(life), claim


def places_by(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Return by key, in order of first appearance, the places at which it stands."""
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places


def due_word(due: float | None) -> int | str:
    """Return a Unix time in µs; "" for None."""
    return "" if due is None else min(max(micros(due), 0), _MAX_DUE_US)


def tail_of(message: NewMessage) -> str | bytes:
    """Return the end of its record, which never changes; or JSON where `add.lua` is to know more."""
    letter = ("mg" if message.unique_key is None else "uw")[message.given]
    tail = f"{letter}{message.id} {message.handler}"
    if message.unique_key is None and not message.deliveries and message.batch is None:
        return tail
    more = {
        "tail": tail,
        "counters": f"{message.deliveries} {message.attempts} {message.crashes}",
        "unique": message.unique_key,
        "batch": message.batch,
        "error": message.last_error,
        "cause": message.cause,
    }
    return b"+" + orjson.dumps({name: readable(text) for name, text in more.items() if text is not None})


def encode_text(text: str) -> bytes:
    """Return a text that a person reads, as UTF-8; characters that UTF-8 cannot carry are escaped."""
    return text.encode("utf-8", "backslashreplace")


def readable(text: str) -> str:
    """Return the same, as a text that JSON can carry."""
    return encode_text(text).decode()


def write_entry(message: NewMessage) -> bytes:
    """Return a message on its way to another queue, as one element of an outbox: a line of facts, then the body.

    The line is JSON only where the older form has no place for something: pools of that form may relay it too.
    """
    if message.unique_key is None and not message.deliveries:
        due = "" if message.due is None else repr(message.due)
        head = f"{message.id} {message.queue} {message.priority} {due} {message.handler}\n"
        return head.encode() + message.body
    facts = {name: value for name, value in asdict(message).items() if value is not None and name != "body"}
    texts = {name: readable(value) if isinstance(value, str) else value for name, value in facts.items()}
    return orjson.dumps(texts) + b"\n" + message.body


def read_entry(entry: bytes) -> NewMessage:
    """Return the message of `write_entry`, with an id given by its producer: so adding it twice does no harm."""
    head, _, body = entry.partition(b"\n")
    if head.startswith(b"{"):
        return NewMessage(**{"due": None, **orjson.loads(head), "given": True, "body": body})
    ident, queue, priority, due, handler = head.decode().split(" ", 4)
    return NewMessage(ident, True, queue, handler, int(priority), float(due) if due else None, body)
