"""The content of a beanstalkd job: one line of our own, and below it the message's body, untouched; and its changes.

A job cannot be changed once it was put. So the id of a message, its counters and its last failure stand in a header:
one line of compact JSON with a version. It is not signed. A change puts a copy with a new header. A job of another
program has no header: it is a message all the same, whose body is all of it. As a rule a pool rejects that.
"""

from __future__ import annotations

import math
import random
from contextlib import suppress
from typing import Annotated, ClassVar

from msgspec import Meta, MsgspecError, Struct, field, json
from msgspec.structs import replace

from jobpool.broker.values import NewMessage, Reaped, ReapPolicy
from jobpool.message.names import IDENTIFIER
from jobpool_backends.shared import cut

# Bytes that a new message leaves free below the server's `max-job-size`, so that its copies have room for a header.
HEADER_ROOM = 640
EXPIRED = "lease expired"
MAX_DELAY_S = 2**32 - 1  # the longest that beanstalkd takes
_MAX_COUNT, _MAX_DELIVERIES = 2**31 - 1, 2**62 - 1
_MAX_TIME_S = 253402300799.0  # the end of 9999: anyone can write headers, and no number there may stop a pool
_MIN_TEXT_CHARS = 16
_MAX_REASON_CHARS = 64

Count = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
Time = Annotated[float, Meta(ge=0, le=_MAX_TIME_S)]


class Record(Struct, frozen=True, omit_defaults=True, tag_field="jobpool", tag=1):
    """The header of a message, as it is written; fields as in a lease and a message. Times are Unix seconds."""

    id: Annotated[str, Meta(pattern=rf"\A{IDENTIFIER.pattern}\Z")]
    enqueued_at: Time = field(name="at")  # of the first enqueue; its copies keep it
    attempts: Count = 0
    crashes: Count = 0  # the charged ones; further ones in the server's counters are charged by the next copy
    # Of the jobs that this one is a copy of; the server counts on from there.
    deliveries: Annotated[int, Meta(ge=0, le=_MAX_DELIVERIES)] = 0
    crashed_at: Time = 0.0  # when the last crash was charged; 0.0 = never
    last_error: str | None = field(name="error", default=None)
    cause: str | None = None
    reason: str | None = None
    died_at: Time | None = None  # None = it is alive; else this is the dead mark
    begun: bool = False
    ours: ClassVar[bool] = True  # the job had a header

    @property
    def is_dead(self) -> bool:
        return self.died_at is not None


class ForeignRecord(Record, frozen=True):
    """The record of a job without a header, under a name made from the server's number. Its copies have a header."""

    ours: ClassVar[bool] = False


_decoder = json.Decoder(Record)  # later versions only add fields, which are ignored


class CountedCrash(Struct, frozen=True):
    """A crashed message as it goes on: its new header, dead past the limit, and whole seconds of delay."""

    record: Record
    delay: int

    def reaped(self, queue: str) -> Reaped:
        """Return what the next reap of the queue reports of it."""
        return Reaped(self.record.id, queue, self.record.crashes, self.record.cause, self.record.is_dead)


def count_crashes(record: Record, crashes: int, cause: str, policy: ReapPolicy, now: float) -> CountedCrash:
    """Charge crashes, the last with this cause, at Unix time `now`. All deliveries are counted."""
    total = crashes if now - record.crashed_at > policy.window else record.crashes + crashes
    charged = replace(record, crashes=total, crashed_at=now, cause=cause)
    if policy.is_over(total):
        return CountedCrash(replace(charged, reason="crash-limit", died_at=now), 0)
    return CountedCrash(charged, whole_seconds(random.uniform(0.0, policy.ceiling(total))))


def whole_seconds(delay: float) -> int:
    """Return a delay as beanstalkd takes it: rounded up."""
    return math.ceil(min(delay, MAX_DELAY_S)) if delay > 0 else 0


def new_bytes(message: NewMessage, since: float, now: float, largest: int) -> bytes:
    """Return the job to put for a message enqueued at `since`, texts cut as in `to_bytes`. Crashes date from `now`."""
    counts = message.attempts, message.crashes, message.deliveries
    if any(counts) or message.last_error or message.cause:
        crashed_at = now if message.crashes else 0.0
        record = Record(message.id, since, *counts, crashed_at, message.last_error, message.cause)
        return to_bytes(record, message.body, largest)
    return b'{"jobpool":1,"id":"%b","at":%.6f}\n%b' % (message.id.encode(), since, message.body)  # in half the time


def to_bytes(record: Record, body: bytes, largest: int) -> bytes:
    """Return header and body to put. If they are more than `largest` bytes, the texts are cut, never the body."""
    record = replace(
        record,
        enqueued_at=round(record.enqueued_at, 6),
        attempts=min(record.attempts, _MAX_COUNT),
        crashes=min(record.crashes, _MAX_COUNT),
        deliveries=min(record.deliveries, _MAX_DELIVERIES),
    )
    packed = _pack(record, body)
    room = max(len(text or "") for text in (record.last_error, record.cause, record.reason))
    while len(packed) > largest and room > _MIN_TEXT_CHARS:
        room //= 2
        error, cause = cut(record.last_error, room), cut(record.cause, room)
        reason = cut(record.reason, max(room, _MAX_REASON_CHARS))
        record = replace(record, last_error=error, cause=cause, reason=reason)
        packed = _pack(record, body)
    return packed


def from_bytes(packed: bytes, job: int) -> tuple[Record, bytes]:
    """Return header and body of the server's job number `job`. Never raises, even without a header."""
    head, newline, body = packed.partition(b"\n")
    if newline and head.startswith(b'{"jobpool":'):
        with suppress(MsgspecError, ValueError, RecursionError):  # a value of a wrong kind, or out of any range
            return _decoder.decode(head), body
    return ForeignRecord(f"beanstalkd-{job}", 0.0), packed


def _pack(record: Record, body: bytes) -> bytes:
    return json.encode(record) + b"\n" + body
