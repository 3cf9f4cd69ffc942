"""The wire form of a message: one JSON object, the same on every broker.

The signature is over a canonical form of the values (fixed order of the fields, nested keys sorted). So the order and
spacing of the body do not matter, and the signed values cannot differ from those that are read. `attempts`, `schedule`,
`_sig` itself and unknown fields are not signed. Nor is `ended`, which a broker adds to the callback of a batch. A body
that has it must say in its signed part that it is a callback of that batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from operator import itemgetter
from secrets import token_hex
from typing import Any, NamedTuple

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from jobpool.errors import LONGEST_WAIT_S, BadSignature, InvalidJob, MalformedEnvelope
from jobpool.message.batches import is_end
from jobpool.message.definition import MAX_RESULT_TTL_S, JobDefinition, is_reserved, rfc3339
from jobpool.message.names import LONGEST_IDENTIFIER, LONGEST_NAME, is_name
from jobpool.message.payload import MAX_DEPTH
from jobpool.message.printable import hides
from jobpool.message.signing import EnvelopeSigner, canonical, canonical_of

TRACEPARENT = "traceparent"  # in the meta: the trace that a job belongs to, as W3C Trace Context has it
WIRE_VERSION = 1  # written as `v` in the meta from version 2 on; absent = 1
MAX_BODY_BYTES = 1024 * 1024
OVERSIZED = bytes(MAX_BODY_BYTES + 1)  # for a body too large to be brought; `decode` refuses it by its length

_ALL_FIELDS = itemgetter(
    "job", "payload", "queue", "priority", "maxRetries", "attempts", "name", "identifier", "idempotencyKey", "schedule"
)
_TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_BRACKETS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NEITHER_BRACKET_NOR_QUOTE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def too_large(handler: str, size: int) -> InvalidJob:
    """Make the error for a body of more than `MAX_BODY_BYTES`."""
    mend = "put the data into a file or a store, and send where it is"
    return InvalidJob(f"the body of job {handler!r} has {size} bytes; at most {MAX_BODY_BYTES}: {mend}")


@hides("sig")
class JobEnvelope(Struct, frozen=True):
    """A decoded message. Its payload is shared with other holders of the envelope: do not change it."""

    job: str  # name of the handler
    payload: Any  # any JSON value
    queue: str  # as its producer signed it
    priority: int
    max_retries: int | None  # None = not set by the producer
    attempts: int  # failed runs before this one, as the backend counts them (the body's number is history)
    name: str | None  # None = the handler's name
    identifier: str
    idempotency_key: str | None = None
    schedule: str | None = None  # RFC 3339 in UTC, as it was enqueued
    meta: dict[str, Any] = field(default_factory=dict)  # reserved keys included; `user_meta` has the producer's part
    sig: str = ""  # "" when missing or no text
    ended: dict[str, Any] | None = None  # the end of the batch whose callback it is, as the broker counted it

    @property
    def full_payload(self) -> Any:
        """The payload as its handler gets it: that of a batch's callback has the end of the batch too, as `batch`."""
        if self.ended is None or not isinstance(self.payload, dict):
            return self.payload
        return {**self.payload, "batch": self.ended}

    @property
    def timeout(self) -> float | None:
        """Seconds, 0 = unlimited; None = not set by the producer."""
        return self.meta.get("_timeout")

    @property
    def single_instance(self) -> bool:
        return bool(self.meta.get("_singleInstance", False))

    @property
    def expires(self) -> float | None:
        """Unix time after which it is not started for the first time; None = never. See `JobLease.expires`."""
        return self.meta.get("_expires")

    @property
    def concurrency_key(self) -> str | None:
        return self.meta.get("_concurrencyKey")

    @property
    def result_ttl(self) -> float | None:
        """Seconds for which its result is kept, 0 = not at all; None = not set by the producer."""
        return self.meta.get("_resultTtl")

    @property
    def batch(self) -> str | None:
        """The id of the batch of which it was enqueued as a member."""
        return self.meta.get("_batch")

    @property
    def then(self) -> list[dict[str, Any]]:
        """The jobs of a chain that come after it, as `JobDefinition.to_dict` describes them."""
        return self.meta.get("_then") or []

    @property
    def previous(self) -> list[Any] | None:
        """The result of the job before it in a chain, in a list; None = it did not ask for one."""
        return self.meta.get("_previous")

    @property
    def trace_id(self) -> str | None:
        """The trace that the job belongs to, 32 hex digits; None = its meta names none."""
        found = _TRACEPARENT.match(str(self.meta.get(TRACEPARENT, "")))
        return found[1] if found else None

    @property
    def user_meta(self) -> dict[str, Any]:
        """A new dict of the producer's own meta."""
        return {key: value for key, value in self.meta.items() if not is_reserved(key)}

    @property
    def version(self) -> int:
        """Of the wire. A message above WIRE_VERSION comes from newer code: give it back, do not run it."""
        return int(self.meta.get("v", 1))

    def to_wire(self) -> dict[str, Any]:
        """Return the wire object, its fields in their order."""
        wire = _wire_object(self, self.job, self.queue, self.identifier, self.schedule, self.meta)
        wire["_sig"] = self.sig
        if self.ended is not None:
            wire["ended"] = self.ended
        return wire


def encode(
    definition: JobDefinition,
    *,
    identifier: str,
    queue: str,
    signer: EnvelopeSigner,
    now: float,
    callback_of: str | None = None,
) -> bytes:
    """Return the body of a message, signed. The definition's own `identifier` and `queue` are not looked at.

    `now`: Unix time, from which `expires_in` counts. `callback_of`: the batch whose end will be added to the body.
    Raises `InvalidJob`: the payload was changed after the check, to something that JSON cannot carry.
    """
    meta = dict(definition.meta)
    if definition.timeout is not None:
        meta["_timeout"] = definition.timeout
    if definition.single_instance:
        meta["_singleInstance"] = True
    if definition.expires_in is not None:
        meta["_expires"] = now + definition.expires_in
    if definition.concurrency_key is not None:
        meta["_concurrencyKey"] = definition.concurrency_key
    if definition.result_ttl is not None:
        meta["_resultTtl"] = definition.result_ttl
    if definition.batch is not None:
        meta["_batch"] = definition.batch
    if definition.then:
        # An id of this chain's own, also where a producer uses the id of an earlier one's first job again.
        meta["_then"] = [{"identifier": token_hex(8)} | job.to_dict() for job in definition.then]
    if definition.previous is not None:
        meta["_previous"] = definition.previous
    if callback_of is not None:
        meta["_callback"] = callback_of
    schedule = rfc3339(definition.scheduled_at) if definition.scheduled_at else None
    wire = _wire_object(definition, definition.handler, queue, identifier, schedule, meta)
    try:
        return _signed(wire, signer)
    except TypeError as error:
        raise InvalidJob(f"the payload of job {definition.handler!r} is not JSON any more: {error}") from error


def sign_again(envelope: JobEnvelope, queue: str, signer: EnvelopeSigner, priority: int | None = None) -> bytes:
    """Return the body of the same message for another queue, or with another priority, signed anew.

    Only of an envelope that `verify` has passed: pools believe the signature.
    """
    priority = envelope.priority if priority is None else priority
    return _signed(replace(envelope, queue=queue, priority=priority).to_wire(), signer)


def _wire_object(
    says: JobDefinition | JobEnvelope, job: str, queue: str, identifier: str, schedule: str | None, meta: dict[str, Any]
) -> dict[str, Any]:
    wire = {
        "job": job,
        "payload": says.payload,
        "queue": queue,
        "priority": says.priority,
        "maxRetries": says.max_retries,
        "attempts": 0,
        "name": says.name,
        "identifier": identifier,
        "idempotencyKey": says.idempotency_key,
        "schedule": schedule,
    }
    if meta:
        wire["meta"] = meta
    return wire


def _signed(wire: dict[str, Any], signer: EnvelopeSigner) -> bytes:
    wire["_sig"] = signer.sign(canonical_of(wire)) if signer.active else ""
    return orjson.dumps(wire)


def decode(body: bytes, *, attempts: int) -> JobEnvelope:
    """Read a body; `attempts`: as the backend counts them. Size and depth are checked before it is parsed.

    Raises `MalformedEnvelope`: above 1 MiB, deeper than 64, no JSON object, or a field is missing or of the wrong type.
    """
    if len(body) > MAX_BODY_BYTES:
        raise MalformedEnvelope(f"the body has more than {MAX_BODY_BYTES} bytes")
    # Counting is far cheaper than measuring, and most bodies have fewer brackets than may be open at once.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise MalformedEnvelope(f"the body is nested more than {MAX_DEPTH} deep")
    try:
        wire = orjson.loads(body)
    except ValueError as error:
        raise MalformedEnvelope(f"the body is not JSON: {error}") from None
    if type(wire) is not dict:
        raise MalformedEnvelope(f"the body is {shown(wire)}, not a JSON object")
    return _read(wire, attempts)


def decode_again(body: bytes, *, attempts: int) -> JobEnvelope:
    """Decode a body that `decode` has accepted in another process of ours. Raises `ValueError`: it is not JSON."""
    wire = orjson.loads(body)
    try:
        job, payload, queue, priority, retries, _, name, identifier, key, schedule = _ALL_FIELDS(wire)
        sig = wire["_sig"]
    except (KeyError, TypeError):
        return decode(body, attempts=attempts)
    meta, end = wire.get("meta") or {}, wire.get("ended")
    return JobEnvelope(
        job, payload, queue, priority, retries, attempts, name, identifier, key, schedule, meta, sig, end
    )


def verify(envelope: JobEnvelope, signer: EnvelopeSigner, queue: str) -> None:
    """Prove that a message is what its producer signed, and was sent to this queue, from which it was fetched.

    The decoded values are signed again and compared; the body is not read. Without keys only the queue is checked.

    Raises:
        BadSignature: The signature is missing or wrong under every key.
        MalformedEnvelope: It was signed for another queue.
    """
    if signer.active:
        e = envelope
        signed = (e.job, e.payload, e.queue, e.priority, e.max_retries, e.name, e.identifier, e.idempotency_key, e.meta)
        if not signer.verify(canonical(signed), e.sig):
            why = "wrong: signed with another key, or changed" if e.sig else "missing: it was enqueued without a key"
            raise BadSignature(f"the signature is {why}")
    if envelope.queue != queue:
        raise MalformedEnvelope(f"the message was sent to queue {envelope.queue!r} and fetched from {queue!r}")


def _depth(body: bytes) -> int:
    """Return how deep the brackets outside strings are nested; exact for JSON, any number for what is none.

    No step is slower than linear, and each runs in C: a hostile body of 1 MiB costs some 50 ms at most.
    """
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(_BRACKETS, _NEITHER_BRACKET_NOR_QUOTE)
    outside = b"".join(marks.split(b'"')[::2])
    return max(accumulate(memoryview(outside).cast("b")), default=0)


def _read(wire: dict[str, Any], attempts: int) -> JobEnvelope:
    """Check in one expression, because it is run for every job; when it fails, `complaint` finds the reason."""
    try:
        job, payload, queue, priority, retries, counted, name, identifier, key, schedule = _ALL_FIELDS(wire)
    except KeyError:
        if any(rule.required and rule.name not in wire for rule in RULES):
            raise MalformedEnvelope(complaint(wire)) from None
        return _read({**_MAY_BE_ABSENT, **wire}, attempts)
    meta = wire.get("meta")
    sig = wire.get("_sig")
    if not (
        type(job) is str is type(queue) is type(identifier)
        and job.isprintable()
        and identifier.isprintable()
        and 0 < len(job) <= LONGEST_NAME
        and 0 < len(identifier) <= LONGEST_IDENTIFIER
        and (type(priority) is int and 0 <= priority <= 255)
        and (retries is None or (type(retries) is int and retries >= 0))
        and (counted is None or (type(counted) is int and counted >= 0))
        and (name is None or is_name(name))
        and (key is None or type(key) is str)
        and (schedule is None or type(schedule) is str)
        and (meta is None or is_meta(meta))
    ):
        raise MalformedEnvelope(complaint(wire))
    if type(sig) is not str:
        sig = ""
    meta = meta or {}
    end = wire.get("ended")
    if end is not None and not (is_end(end) and _is_callback(end["id"], meta, identifier)):
        raise MalformedEnvelope(
            "the body's field 'ended' is not the end of a batch whose callback this job is: if an older jobpool opened"
            " that batch, enqueue the callback anew by hand"
        )
    return JobEnvelope(
        job, payload, queue, priority, retries, attempts, name, identifier, key, schedule, meta, sig, end
    )


def _is_callback(batch: str, meta: dict[str, Any], identifier: str) -> bool:
    """Return whether the signed part says that the job is a callback of this batch.

    By its identifier if it was packed by a version that did not mark callbacks.
    """
    return meta.get("_callback") == batch or identifier in (f"{batch}:on_success", f"{batch}:on_done")


class Rule(NamedTuple):
    """One field. An optional one may be absent or null, which mean the same."""

    name: str
    required: bool
    holds: Callable[[Any], bool]
    wanted: str


def complaint(wire: dict[str, Any]) -> str:
    """Return the first rule that a wire object breaks, as a sentence; "" when it breaks none."""
    for name, required, holds, wanted in RULES:
        if name not in wire:
            if required:
                return f"the body has no field {name!r}"
        elif not holds(wire[name]) and (required or wire[name] is not None):
            return f"the body's field {name!r} is {shown(wire[name])}, not {wanted}"
    return ""


def shown(value: object) -> str:
    """Return a JSON value for an error text, cut."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:60] + "…"


def is_meta(value: object) -> bool:
    """Return whether the reserved keys hold what they should. A newer wire may use them in its own way."""
    if type(value) is not dict:
        return False
    version = value.get("v", 1)
    if type(version) is not int or version < 1:
        return False
    if version <= WIRE_VERSION:
        for key, item in value.items():
            if key in _META_RULES and not _META_RULES[key](item):
                return False
    return True


_META_RULES: dict[str, Callable[[Any], bool]] = {
    # A longer timer than a definition takes overflows in the child, which would look like a crash.
    "_timeout": lambda value: type(value) in (int, float) and 0 <= value <= LONGEST_WAIT_S,
    "_expires": lambda value: type(value) in (int, float) and value >= 0,
    "_singleInstance": lambda value: type(value) is bool,
    "_concurrencyKey": is_name,
    "_resultTtl": lambda value: type(value) in (int, float) and 0 <= value <= MAX_RESULT_TTL_S,
    "_batch": is_name,
    "_then": lambda value: type(value) is list and all(type(item) is dict for item in value),
    "_previous": lambda value: type(value) is list and len(value) <= 1,
    "_callback": is_name,
}
_META_WANTED = (
    "an object whose v is a number from 1, _timeout and _expires seconds, _singleInstance true or false,"
    " _concurrencyKey a name, _resultTtl seconds of 30 days at most, _batch a name, _then a list of objects,"
    " _previous a list of one value, _callback a name"
)


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


RULES = (
    Rule("job", True, is_name, f"a handler's name of 1 to {LONGEST_NAME} printable characters"),
    Rule("payload", True, lambda _: True, "a JSON value"),
    Rule("queue", True, _is_text, "text"),
    Rule("priority", True, lambda value: _is_count(value) and value <= 255, "a whole number from 0 to 255"),
    Rule("maxRetries", False, _is_count, "a whole number from 0, or null"),
    Rule("attempts", False, _is_count, "a whole number from 0, or null"),
    Rule("name", False, is_name, f"1 to {LONGEST_NAME} printable characters, or null"),
    Rule(
        "identifier",
        True,
        lambda value: is_name(value) and len(value) <= LONGEST_IDENTIFIER,
        f"1 to {LONGEST_IDENTIFIER} printable characters",
    ),
    Rule("idempotencyKey", False, _is_text, "text, or null"),
    Rule("schedule", False, _is_text, "text, or null"),
    Rule("meta", False, is_meta, _META_WANTED),
)  # in wire order; `_sig` may hold anything: `verify` refuses a bad signature
_MAY_BE_ABSENT = {rule.name: None for rule in RULES if not rule.required}
