"""The content of a message of Service Bus: our header, a line break, and the signed envelope, untouched.

    {"jobpool":1,"id":"…","at":1763745600000000,"job":"mail","p":5,"a":1,…}\n{"job":"mail",…}

The header is one line of compact JSON, outside of the signature. Every message there is immutable, so a counter changes
by sending a copy. Only the broker's own delivery count moves; the deliveries of a job are these, plus those of its
earlier copies.

A dead letter keeps the header it died with. Its death is told in the broker's two texts: the reason, and as description
one line of JSON, the death record.

A body without a good header was put there by another program. It is handed out as it is: a bare envelope runs, and
anything else is malformed, which a pool makes a dead letter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from msgspec import Meta, MsgspecError, Struct, field, json
from msgspec.structs import asdict, replace

from jobpool.broker.values import NewMessage, ReapPolicy
from jobpool.message.definition import DEFAULT_PRIORITY
from jobpool.message.names import IDENTIFIER
from jobpool_backends.shared import cut, micros

MAX_TEXT_CHARS = 16_384  # characters of an error or a cause in a header; more is cut in the middle
MAX_DEATH_RECORD_CHARS = 4096  # characters that the broker keeps of a reason or a description
# The broker's names of deaths that it causes itself, and jobpool's word for each.
REASONS = {"MaxDeliveryCountExceeded": "crash-limit", "TTLExpiredException": "expired"}
MAX_MESSAGE_ID_CHARS = 128  # characters that the broker takes
OVERHEAD_BYTES = 320  # bytes of properties and annotations around a body, at most
# Bytes by which the header of a copy may be longer than that of the first message, without its texts.
COPY_GROWTH_BYTES = 256
_LAST_DUE = datetime(9999, 1, 1, tzinfo=UTC)

Count = Annotated[int, Meta(ge=0, lt=2**31)]  # beyond any counter, and what a frame to a child can carry
Moment = Annotated[int, Meta(ge=0, le=253402300799 * 10**6)]  # whole microseconds of Unix time, up to the year 9999


class Record(Struct, frozen=True, omit_defaults=True, tag_field="jobpool", tag=1):
    """One message, with or without its header on the wire. The fields up to `begun` are written as its header."""

    id: Annotated[str, Meta(pattern=rf"\A{IDENTIFIER.pattern}\Z")]
    enqueued_at: Moment = field(name="at")  # of the first enqueue
    handler: str = field(name="job")  # "" when another program put it there
    priority: Count = field(name="p")
    attempts: Count = field(name="a", default=0)
    crashes: Count = field(name="c", default=0)
    crashed_at: Moment | None = field(name="x", default=None)  # of the last crash; None = none yet
    deliveries: Count = field(name="d", default=0)  # of earlier copies; those of this one are the broker's to count
    last_error: str | None = field(name="e", default=None)
    cause: str | None = field(name="k", default=None)
    begun: bool = field(name="b", default=False)  # as in a lease
    reason: str | None = None  # of a dead letter, as `died_at`
    died_at: Moment | None = None
    body: bytes = b""  # the envelope, as it was signed

    def write(self) -> bytes:
        """Return the body of a message that carries this, without fields that only a dead letter has."""
        error, cause = cut(self.last_error, MAX_TEXT_CHARS), cut(self.cause, MAX_TEXT_CHARS)
        header = replace(self, last_error=error, cause=cause, reason=None, died_at=None, body=b"")
        return json.encode(header) + b"\n" + self.body

    @property
    def size(self) -> int:
        return len(self.write())

    def message(self, *, message_id: str | None = None, due: float | None = None) -> ServiceBusMessage:
        """Return a message to send; a copy has another id. `due`: Unix time there, rounded up to a millisecond."""
        return ServiceBusMessage(
            self.write(),
            message_id=message_id or self.id,
            content_type="application/json",
            scheduled_enqueue_time_utc=None if due is None else _moment(due),
        )

    def fits(self, limit: int) -> Record:
        """Return this with its texts cut, so that the whole is at most `limit` bytes, as far as cutting them helps."""
        fitting = self
        for longest in (4096, 1024, 256, 0):
            if fitting.size + OVERHEAD_BYTES <= limit:
                break
            fitting = replace(self, last_error=cut(self.last_error, longest), cause=cut(self.cause, longest))
        return fitting

    def death_record(self, died_at: int) -> str:
        """Return the description of the dead letter that this becomes: one line of JSON, short enough."""
        for longest in (MAX_DEATH_RECORD_CHARS, 1600, 800, 250, 0):
            texts = cut(self.last_error, longest), cut(self.cause, longest)
            told = json.encode(DeathRecord(died_at, self.attempts, self.crashes, *texts)).decode()
            if len(told) <= MAX_DEATH_RECORD_CHARS:
                break
        return told


class DeathRecord(Struct, frozen=True, omit_defaults=True):
    """The end of a message, in the description of its dead letter. None: the header tells it."""

    died_at: Moment
    attempts: Count | None = None
    crashes: Count | None = None
    last_error: str | None = field(name="error", default=None)
    cause: str | None = None


_decoder = json.Decoder(Record)  # later versions only add fields, which are ignored
_UNREADABLE = (MsgspecError, ValueError, RecursionError)


def new_record(message: NewMessage, enqueued_at: int) -> Record:
    """Return the record of a message on its way in."""
    return Record(
        id=message.id,
        enqueued_at=enqueued_at,
        body=message.body,
        handler=message.handler,
        priority=message.priority,
        attempts=message.attempts,
        crashes=message.crashes,
        deliveries=message.deliveries,
        last_error=message.last_error,
        cause=message.cause,
    )


def charge(record: Record, policy: ReapPolicy, cause: str, now: int) -> Record:
    """Add a crash, at this microsecond of Unix time; those before the policy's window do not count any more."""
    long_ago = record.crashed_at is not None and now - record.crashed_at > micros(policy.window)
    return replace(record, crashes=1 if long_ago else record.crashes + 1, crashed_at=now, cause=cause)


def read(message: ServiceBusReceivedMessage) -> Record:
    """Return the record of a received or peeked message, of a queue or of its dead letters. Never raises."""
    record = _read_body(message)
    reason, text = str(message.dead_letter_reason or ""), str(message.dead_letter_error_description or "")
    if not (reason or text):
        return record
    with suppress(*_UNREADABLE):  # another program's
        told = asdict(json.decode(text, type=DeathRecord))
        return replace(record, reason=reason, **{name: fact for name, fact in told.items() if fact is not None})
    return replace(record, reason=REASONS.get(reason, reason), last_error=record.last_error or text or None)


def copy_id(ident: str, place: str, sequence: int) -> str:
    """Return the message id of a copy of the message with this number: another for every original.

    So a queue that detects duplicates keeps a copy that is sent twice once, and mistakes no other copy for it. `place`
    tells the numbers of a queue and of its dead letters apart.
    """
    tail = f"#{place}{sequence}"
    if len(ident) + len(tail) <= MAX_MESSAGE_ID_CHARS:
        return ident + tail
    return hashlib.sha256(ident.encode()).hexdigest() + tail


def _moment(due: float) -> datetime:
    """Round a delayed moment up to milliseconds, as the broker's clock has them."""
    milliseconds = math.ceil(max(0, micros(due)) / 1000)
    try:
        return min(datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds), _LAST_DUE)
    except OverflowError:
        return _LAST_DUE


def _read_body(message: ServiceBusReceivedMessage) -> Record:
    raw = body_of(message)
    if raw.startswith(b'{"jobpool":'):
        line, _, body = raw.partition(b"\n")
        with suppress(*_UNREADABLE):  # it only looks like one of ours
            return replace(_decoder.decode(line), body=body, reason=None, died_at=None)
    ident = str(message.message_id or "")
    if not IDENTIFIER.fullmatch(ident):
        ident = f"seq-{message.sequence_number}"
    sent = message.enqueued_time_utc
    return Record(ident, micros(sent.timestamp()) if sent else 0, "", DEFAULT_PRIORITY, body=raw)


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    """Return the bytes of a message; of one that holds something else than bytes, its text."""
    body: Any = message.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, Iterable) and not isinstance(body, str | dict):
        parts = list(body)
        if all(isinstance(part, bytes) for part in parts):
            return b"".join(parts)
    return str(message).encode("utf-8", "backslashreplace")
