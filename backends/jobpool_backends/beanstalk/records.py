"""The content of a beanstalkd job: one line of our own, and below it the message's body, untouched; and its changes.

A job cannot be changed once it was put. So the id of a message, its counters and its last failure stand in a header:
one line of compact JSON with a version. It is not signed. A change puts a copy with a new header. A job of another
program has no header: it is a message all the same, whose body is all of it. As a rule a pool rejects that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from jobpool.broker.values import NewMessage, Reaped, ReapPolicy
from jobpool.message.names import IDENTIFIER

VERSION = 1
# Bytes that a new message leaves free below the server's `max-job-size`, so that its copies have room for a header.
HEADER_ROOM = 640
EXPIRED = "lease expired"
MAX_DELAY_S = 2**32 - 1  # the longest that beanstalkd takes
_MIN_TEXT_CHARS = 16
_MAX_REASON_CHARS = 64


class Record(Struct, frozen=True):
    """The header of a message; fields as in a lease and a message. Wall-clock times are Unix seconds."""

    id: str  # without a header, a name made from the server's number
    enqueued_at: float  # of the first enqueue; its copies keep it
    attempts: int = 0
    crashes: int = 0  # the charged ones; further ones in the server's counters are charged by the next copy
    deliveries: int = 0  # of the jobs that this one is a copy of; the server counts on from there
    crashed_at: float = 0.0  # when the last crash was charged; 0.0 = never
    last_error: str | None = None
    cause: str | None = None
    reason: str | None = None
    died_at: float | None = None  # None = it is alive; else this is the dead mark
    begun: bool = False
    ours: bool = True  # True if the job had a header

    @property
    def is_dead(self) -> bool:
        return self.died_at is not None

    def with_texts(self, error: str | None, cause: str | None) -> Record:
        """Return this with another last error and cause; None = the one it has."""
        error, cause = self.last_error if error is None else error, self.cause if cause is None else cause
        return replace(self, last_error=error, cause=cause)


class Charge(Struct, frozen=True):
    """A crashed message as it goes on: its new header, dead past the limit, and whole seconds of delay."""

    record: Record
    delay: int

    def reaped(self, queue: str) -> Reaped:
        """Return what the next reap of the queue reports of it."""
        return Reaped(self.record.id, queue, self.record.crashes, self.record.cause, self.record.is_dead)


def charge(
    record: Record, crashes: int, cause: str, policy: ReapPolicy, now: float, draw: Callable[[float, float], float]
) -> Charge:
    """Charge crashes, the last with this cause, at Unix time `now`. All deliveries are counted; `draw`: `uniform`."""
    total = crashes if now - record.crashed_at > policy.window else record.crashes + crashes
    charged = replace(record, crashes=total, crashed_at=now, cause=cause)
    if policy.is_over(total):
        return Charge(replace(charged, reason="crash-limit", died_at=now), 0)
    return Charge(charged, whole_seconds(draw(0.0, policy.ceiling(total))))


def whole_seconds(delay: float) -> int:
    """Return a delay as beanstalkd takes it: rounded up."""
    return math.ceil(min(delay, MAX_DELAY_S)) if delay > 0 else 0


# Key in the header → field; `jobpool` (the version), `id` and `at` come first, and are always there.
_KEYS = {
    key: "last_error" if key == "error" else key
    for key in ("attempts", "crashes", "deliveries", "crashed_at", "error", "cause", "reason", "died_at", "begun")
}
_LIMITS = {"attempts": 2**31, "crashes": 2**31, "deliveries": 2**62}
_TEXTS = ("error", "cause", "reason")
_TIMES = ("crashed_at", "died_at")
_MAX_TIME_S = 253402300799.0  # the end of 9999: anyone can write headers, and no number there may stop a pool


def new_bytes(message: NewMessage, since: float, now: float, largest: int) -> bytes:
    """Return the job to put for a message enqueued at `since`, texts cut as in `to_bytes`. Crashes date from `now`."""
    counts = message.attempts, message.crashes, message.deliveries
    if any(counts) or message.last_error or message.cause:
        crashed_at = now if message.crashes else 0.0
        record = Record(message.id, since, *counts, crashed_at, message.last_error, message.cause)
        return to_bytes(record, message.body, largest)
    return b'{"jobpool":%d,"id":"%b","at":%.6f}\n%b' % (VERSION, message.id.encode(), since, message.body)


def to_bytes(record: Record, body: bytes, largest: int) -> bytes:
    """Return header and body to put. If they are more than `largest` bytes, the texts are cut, never the body."""
    packed = _header(record) + body
    room = max(len(text or "") for text in (record.last_error, record.cause, record.reason))
    while len(packed) > largest and room > _MIN_TEXT_CHARS:
        room //= 2
        error, cause = _cut(record.last_error, room), _cut(record.cause, room)
        reason = _cut(record.reason, max(room, _MAX_REASON_CHARS))
        record = replace(record, last_error=error, cause=cause, reason=reason)
        packed = _header(record) + body
    return packed


def from_bytes(packed: bytes, job: int) -> tuple[Record, bytes]:
    """Return header and body of the server's job number `job`. Never raises, even without a header."""
    head, newline, body = packed.partition(b"\n")
    if newline and head.startswith(b'{"jobpool":'):
        record = _read(head)
        if record is not None:
            return record, body
    return Record(f"beanstalkd-{job}", 0.0, ours=False), packed


def _header(record: Record) -> bytes:
    values: dict[str, Any] = {"jobpool": VERSION, "id": record.id, "at": round(record.enqueued_at, 6)}
    for key, field in _KEYS.items():
        value = getattr(record, field)
        if key in _LIMITS:
            value = min(value, _LIMITS[key] - 1)
        if value or (field == "died_at" and value is not None):
            values[key] = value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
    return orjson.dumps(values) + b"\n"


def _read(head: bytes) -> Record | None:
    """Return the record of a header; None where a value is of a wrong kind, or out of any range."""
    try:
        values = orjson.loads(head)
    except ValueError:
        return None
    ident, at = values.get("id"), values.get("at")
    if (
        values.get("jobpool") != VERSION
        or type(ident) is not str
        or not IDENTIFIER.fullmatch(ident)
        or not _is_time(at)
    ):
        return None
    if len(values) == 3:
        return Record(ident, float(at))  # most have been put once, and nothing more
    good = (
        all(type(count := values.get(key, 0)) is int and 0 <= count < most for key, most in _LIMITS.items())
        and all(isinstance(values.get(key, ""), str) for key in _TEXTS)
        and all(_is_time(values.get(key, 0.0)) for key in _TIMES)
        and type(values.get("begun", False)) is bool
    )
    told = {field: values[key] for key, field in _KEYS.items() if key in values}
    return Record(id=ident, enqueued_at=float(at), **told) if good else None


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MAX_TIME_S  # type: ignore[operator]


def _cut(text: str | None, room: int) -> str | None:
    """Return head and tail of `text`, `room` characters in all and a mark."""
    if text is None or len(text) <= room:
        return text
    return f"{text[: room // 2]}…{text[len(text) - room // 2 :]}"
