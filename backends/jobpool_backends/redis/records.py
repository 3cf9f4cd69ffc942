"""A message as Redis keeps it: its member, its record, its notes. `keys` describes them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from jobpool.broker.claim_store import QueueMessage
from jobpool.broker.values import Message, NewMessage, State
from jobpool.errors import ConfigurationError
from jobpool_backends.shared import MICRO, micros

MEMBER_CHARS = 19
"""Characters of a member."""

HOLDER_CHARS = 16
"""Characters of an owner token that name the holder."""

TAG_BYTES = 32
"""Bytes that stand before the record of a leased message: holder, ttl and two spaces."""

PRIORITIES = tuple(f"{priority:03d}" for priority in range(256))

_LETTERS = {(False, False): "m", (False, True): "g", (True, False): "u", (True, True): "w"}
"""By whether it has a unique key, and whether its producer gave the id."""

_STATES = {b"w": State.WAITING, b"d": State.DELAYED, b"l": State.LEASED, b"c": State.LEASED, b"x": State.DEAD}
_MAX_DUE_US = 9_000_000_000_000_000
"""Unix time in µs, in the year 2255: what a sorted set's score can tell to the microsecond."""


@dataclass(frozen=True, slots=True)
class Row:
    """The whole of one message, as `read.lua` answers. Times are Unix time in µs.

    Attributes:
        stored: The record as it is, leased or not.
        moment: The time that belongs to the state: when it is due, when its lease or claim ends, when it died.
        body: Empty when it was not asked for.
        claim: Id of the claim that holds it.
        ends_at: When its life ends.
    """

    member: str
    queue: str
    id: str
    handler: str
    state: State
    stored: bytes
    moment: int | None
    attempts: int
    crashes: int
    deliveries: int
    enqueued_at: int
    available_at: int
    notes: dict[str, str]
    body: bytes
    claims: int
    claim: str | None
    ends_at: int | None

    @property
    def died_at(self) -> int | None:
        return self.moment if self.state is State.DEAD else None

    def message(self, cursor: str) -> Message:
        """Return the message as an administrator sees it."""
        ends = self.moment if self.state is State.LEASED else None
        return Message(
            id=self.id,
            queue=self.queue,
            state=self.state,
            handler=self.handler,
            priority=int(self.member[:3]),
            attempts=self.attempts,
            crashes=self.crashes,
            deliveries=self.deliveries,
            enqueued_at=self.enqueued_at / MICRO,
            available_at=self.available_at / MICRO,
            body=self.body,
            reason=self.notes.get("reason"),
            last_error=self.notes.get("error"),
            cause=self.notes.get("forfeited") or self.notes.get("cause"),
            died_at=None if self.died_at is None else self.died_at / MICRO,
            expires_at=None if ends is None else ends / MICRO,
            claim=self.claim,
            claims=self.claims,
            ends_at=None if self.ends_at is None else self.ends_at / MICRO,
            cursor=cursor,
        )

    def queue_message(self, cursor: str) -> QueueMessage:
        """Return the message as claims see it."""
        return QueueMessage(
            id=self.id,
            queue=self.queue,
            body=self.body,
            handler=self.handler,
            priority=int(self.member[:3]),
            enqueued_at=self.enqueued_at / MICRO,
            claims=self.claims,
            claim=self.claim,
            ends_at=None if self.ends_at is None else self.ends_at / MICRO,
            cursor=cursor,
        )


def read_row(queue: str, member: str, answer: list[Any]) -> Row | None:
    """Return a row from what `read.lua` says of one message; None when it is gone.

    Raises `ConfigurationError` where its keys do not fit together: Redis has evicted some of them.
    """
    letter, moment, stored, notes, body = answer
    if stored is None:
        return None
    record = stored[TAG_BYTES:] if letter == b"l" else stored
    if letter != b"l" and record[HOLDER_CHARS : HOLDER_CHARS + 1] == b" " and not record[:HOLDER_CHARS].count(b" "):
        raise ConfigurationError(
            f"Redis has lost keys of queue {queue!r}, as it does when it evicts them: a message is leased, and the"
            " list of leases is gone. Set maxmemory-policy noeviction, and enqueue again what is missing"
        )
    deliveries, attempts, crashes, available, enqueued, ident, rest = record.decode().split(" ", 6)
    handler, claims, ends_at, claim = read_tail(rest)
    return Row(
        member=member,
        queue=queue,
        id=ident[1:],
        handler=handler,
        state=_STATES[letter],
        stored=stored,
        moment=None if moment is None else int(moment),
        attempts=int(attempts),
        crashes=int(crashes),
        deliveries=int(deliveries),
        enqueued_at=int(enqueued),
        available_at=int(enqueued if available == "-" else available),
        notes=orjson.loads(notes) if notes else {},
        body=body or b"",
        claims=claims,
        claim=claim if letter == b"c" else None,
        ends_at=ends_at,
    )


def read_tail(rest: str) -> tuple[str, int, int | None, str]:
    """Parse the end of a record: handler, number of claims, end of life in µs, claim ('-' for none)."""
    handler, has_more, more = rest.partition("\n")
    if not has_more:
        return handler, 0, None, "-"
    claims, life, claim = more.split(" ")
    return handler, int(claims), None if life == "-" else int(life), claim


def due_of(message: NewMessage) -> int | str:
    """Return when it is due, Unix time in µs; empty for now."""
    return "" if message.due is None else min(max(micros(message.due), 0), _MAX_DUE_US)


def tail_of(message: NewMessage) -> str | bytes:
    """Return the end of its record, which never changes; with what else `add.lua` is to know of it."""
    if message.unique_key is None and not message.deliveries:
        return f"{'g' if message.given else 'm'}{message.id} {message.handler}"
    return b"+" + orjson.dumps(_more_of(message))


def _more_of(message: NewMessage) -> dict[str, str]:
    letter = _LETTERS[message.unique_key is not None, message.given]
    more = {
        "tail": f"{letter}{message.id} {message.handler}",
        "counters": f"{message.deliveries} {message.attempts} {message.crashes}",
        "unique": message.unique_key,
        "error": message.last_error,
        "cause": message.cause,
    }
    return {name: readable(text) for name, text in more.items() if text is not None}


def encode_text(text: str) -> bytes:
    """Return a text that a person reads, as UTF-8; what UTF-8 cannot carry is written out."""
    return text.encode("utf-8", "backslashreplace")


def readable(text: str) -> str:
    """Return the same, as a text that JSON can carry."""
    return encode_text(text).decode()


def write_entry(message: NewMessage) -> bytes:
    """Return a message on its way to another queue, as one element of an outbox: a line that says what it is, then the
    body.

    The line is JSON only where the older form has no place for something: pools of that form may relay it too.
    """
    if message.unique_key is None and not message.deliveries:
        due = "" if message.due is None else repr(message.due)
        head = f"{message.id} {message.queue} {message.priority} {due} {message.handler}\n"
        return head.encode() + message.body
    fields = asdict(replace(message, body=b""))
    del fields["body"]
    texts = {name: readable(value) if isinstance(value, str) else value for name, value in fields.items()}
    return orjson.dumps({name: value for name, value in texts.items() if value is not None}) + b"\n" + message.body


def read_entry(entry: bytes) -> NewMessage:
    """Return the message of `write_entry`; as one whose producer gave the id, so that it can be added twice without
    harm.
    """
    head, _, body = entry.partition(b"\n")
    if head.startswith(b"{"):
        return NewMessage(**{"due": None, **orjson.loads(head), "given": True, "body": body})
    ident, queue, priority, due, handler = head.decode().split(" ", 4)
    return NewMessage(ident, True, queue, handler, int(priority), float(due) if due else None, body)
