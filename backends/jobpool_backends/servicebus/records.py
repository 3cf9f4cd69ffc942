"""The content of a message of Service Bus: our header, a line break, and the signed envelope, untouched.

    {"jobpool":1,"id":"…","at":1763745600000000,"job":"mail","p":5,"a":1,…}\n{"job":"mail",…}

The header is one line of compact JSON, outside of the signature. Every message there is immutable, so a counter changes
by sending a copy. Only the broker's own delivery count moves; the deliveries of a job are these, plus those of its
earlier copies.

A dead letter keeps the header it died with. Its death is told in the broker's two texts: the reason, and as description
one line of JSON, the epitaph.

A body without a good header was put there by another program. It is handed out as it is: a bare envelope runs, and
anything else is malformed, which a pool makes a dead letter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from msgspec import Struct
from msgspec.structs import replace

from jobpool.broker.values import NewMessage, ReapPolicy
from jobpool.message.names import IDENTIFIER
from jobpool_backends.shared import micros

MAX_TEXT_CHARS = 16_384  # characters of an error or a cause in a header; more is cut in the middle
MAX_EPITAPH_CHARS = 4096  # characters that the broker keeps of a reason or a description
# The broker's names of deaths that it causes itself, and jobpool's word for each.
REASONS = {"MaxDeliveryCountExceeded": "crash-limit", "TTLExpiredException": "expired"}
MAX_MESSAGE_ID_CHARS = 128  # characters that the broker takes
OVERHEAD_BYTES = 320  # bytes of properties and annotations around a body, at most
# Bytes by which the header of a copy may be longer than that of the first message, without its texts.
COPY_GROWTH_BYTES = 256
_LAST_DUE = datetime(9999, 1, 1, tzinfo=UTC)
_CUT = " … "
_MAX_COUNT = 2**31 - 1  # beyond any counter, and what a frame to a child can carry
_MAX_MOMENT_US = 253402300799 * 10**6  # the end of the year 9999
# Key → field, of the header and of the epitaph. The header has `b`, for `begun`, besides.
_ALWAYS_WRITTEN = {"id": "id", "at": "enqueued_at", "job": "handler", "p": "priority"}
_WRITTEN = {"d": "deliveries", "a": "attempts", "c": "crashes", "x": "crashed_at", "e": "last_error", "k": "cause"}
_EPITAPH = {"attempts": "attempts", "crashes": "crashes", "error": "last_error", "cause": "cause"}


class Record(Struct, frozen=True):
    """One message, whatever carried it. Times are whole microseconds on the Unix clock."""

    id: str
    enqueued_at: int  # of the first enqueue
    body: bytes  # the envelope, as it was signed
    handler: str = ""  # "" when another program put it there
    priority: int = 5
    attempts: int = 0
    crashes: int = 0
    crashed_at: int | None = None  # of the last crash; None = none yet
    deliveries: int = 0  # of earlier copies; those of this one are the broker's to count
    last_error: str | None = None
    cause: str | None = None
    begun: bool = False  # as in a lease
    reason: str | None = None  # of a dead letter, as `died_at`
    died_at: int | None = None

    def write(self) -> bytes:
        """Return the body of a message that carries this, without fields that only a dead letter has."""
        header: dict[str, Any] = {"jobpool": 1} | {key: getattr(self, field) for key, field in _ALWAYS_WRITTEN.items()}
        if self.deliveries or self.attempts or self.crashes or self.last_error or self.cause or self.begun:
            more = {key: getattr(self, field) for key, field in _WRITTEN.items()}
            more |= {"e": cut(self.last_error), "k": cut(self.cause), "b": self.begun}
            header |= {key: value for key, value in more.items() if value}
        return orjson.dumps(header) + b"\n" + self.body

    @property
    def size(self) -> int:
        return len(self.write())

    def with_texts(self, error: str | None, cause: str | None) -> Record:
        """Return this with another last error and cause; None = the one it has."""
        error, cause = self.last_error if error is None else error, self.cause if cause is None else cause
        return replace(self, last_error=error, cause=cause)

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

    def epitaph(self, died_at: int) -> str:
        """Return the description of the dead letter that this becomes: one line of JSON, short enough."""
        facts = {"died_at": died_at, "attempts": self.attempts, "crashes": self.crashes}
        for longest in (MAX_EPITAPH_CHARS, 1600, 800, 250, 0):
            texts = {"error": cut(self.last_error, longest), "cause": cut(self.cause, longest)}
            told = orjson.dumps({**{name: text for name, text in texts.items() if text}, **facts}).decode()
            if len(told) <= MAX_EPITAPH_CHARS:
                break
        return told


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
    with suppress(LookupError, TypeError, ValueError):  # another program's
        facts = orjson.loads(text)
        told = {_EPITAPH[key]: facts[key] for key in _EPITAPH if key in facts}
        return _checked(replace(record, reason=reason, died_at=facts["died_at"], **told))
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


def cut(text: str | None, longest: int = MAX_TEXT_CHARS) -> str | None:
    """Return the text, without its middle when it is too long, and with what UTF-8 cannot carry written out."""
    if not text:
        return None
    readable = text.encode("utf-8", "backslashreplace").decode()
    if len(readable) <= longest:
        return readable
    half = max(0, longest - len(_CUT)) // 2
    return readable[:half] + _CUT + readable[len(readable) - half :] if half else None


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
        with suppress(KeyError, TypeError, ValueError):  # it only looks like one of ours
            header = orjson.loads(line)  # later versions only add fields, which are ignored
            fields = {field: header[key] for key, field in _ALWAYS_WRITTEN.items()}
            fields |= {field: header[key] for key, field in _WRITTEN.items() if key in header}
            return _checked(Record(**fields, body=body, begun=header.get("b") is True))
    ident = str(message.message_id or "")
    if not IDENTIFIER.fullmatch(ident):
        ident = f"seq-{message.sequence_number}"
    sent = message.enqueued_time_utc
    return Record(ident, micros(sent.timestamp()) if sent else 0, raw)


def _checked(record: Record) -> Record:
    """Return the record; ValueError if it holds impossible values."""
    counts = (record.priority, record.attempts, record.crashes, record.deliveries)
    moments = (record.enqueued_at, record.crashed_at or 0, record.died_at or 0)
    good = (
        isinstance(record.id, str)
        and IDENTIFIER.fullmatch(record.id)
        and isinstance(record.handler, str)
        and all(type(count) is int and 0 <= count <= _MAX_COUNT for count in counts)
        and all(type(moment) is int and 0 <= moment <= _MAX_MOMENT_US for moment in moments)
        and all(text is None or isinstance(text, str) for text in (record.last_error, record.cause))
    )
    if not good:
        raise ValueError("a header that jobpool has not written")
    return record


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    """Return the bytes of a message; of one that holds something else than bytes, what it says of itself."""
    body: Any = message.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, Iterable) and not isinstance(body, str | dict):
        parts = list(body)
        if all(isinstance(part, bytes) for part in parts):
            return b"".join(parts)
    return str(message).encode("utf-8", "backslashreplace")
