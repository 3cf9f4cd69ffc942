"""The wire form of a message: one JSON object, the same on every broker (docs/wire.md).

`encode` writes it, `decode` reads and checks it, `verify` proves that its producer signed it. The signature is over a
canonical form of the values (fixed order of the fields, nested keys sorted). So the order and spacing of the body do
not matter, and the signed values cannot differ from those that are read. `attempts`, `schedule` and unknown fields are
not signed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from typing import Any

import orjson

from jobpool.errors import BadSignature, InvalidJob, MalformedEnvelope
from jobpool.message.definition import JobDefinition, is_reserved, rfc3339
from jobpool.message.frozen import maker
from jobpool.message.names import LONGEST_IDENTIFIER, LONGEST_NAME
from jobpool.message.payload import MAX_DEPTH
from jobpool.message.signing import EnvelopeSigner, canonical
from jobpool.message.signing import canonical_bytes as canonical_bytes
from jobpool.message.wire_rules import RULES, complaint, is_meta, is_name, shown
from jobpool.message.wire_rules import WIRE_VERSION as WIRE_VERSION

MAX_BODY_BYTES = 1024 * 1024

OVERSIZED = bytes(MAX_BODY_BYTES + 1)
"""Stands for a body that is too large to be brought from its broker. `decode` refuses it by its length, so it is never
read, and there is one for all."""

_ALL_FIELDS = itemgetter(
    "job", "payload", "queue", "priority", "maxRetries", "attempts", "name", "identifier", "idempotencyKey", "schedule"
)
_MAY_BE_ABSENT = {rule.name: None for rule in RULES if not rule.required}
_BRACKETS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NEITHER_BRACKET_NOR_QUOTE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


@dataclass(frozen=True, slots=True)
class JobEnvelope:
    """A decoded message.

    Attributes:
        job: Name of the handler.
        payload: Any JSON value. Shared with other holders of the envelope: do not change it.
        queue: As its producer signed it.
        max_retries: None = not set by the producer.
        attempts: Failed runs before this one, as the backend counts them (the body's number is history).
        name: None = the handler's name.
        schedule: RFC 3339 in UTC, as it was enqueued.
        meta: The whole of it, reserved keys included; `user_meta` has the producer's part.
        sig: "" when missing or no text.
    """

    job: str
    payload: Any
    queue: str
    priority: int
    max_retries: int | None
    attempts: int
    name: str | None
    identifier: str
    idempotency_key: str | None = None
    schedule: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    sig: str = field(default="", repr=False)

    @property
    def timeout(self) -> float | None:
        """Seconds; 0 = unlimited; None = not set by the producer."""
        return self.meta.get("_timeout")

    @property
    def single_instance(self) -> bool:
        return bool(self.meta.get("_singleInstance", False))

    @property
    def expires(self) -> float | None:
        """Unix time after which it is not started for the first time; None = never expires. See `JobLease.expires`."""
        return self.meta.get("_expires")

    @property
    def concurrency_key(self) -> str | None:
        return self.meta.get("_concurrencyKey")

    @property
    def user_meta(self) -> dict[str, Any]:
        """A new dict of the producer's own meta."""
        return {key: value for key, value in self.meta.items() if not is_reserved(key)}

    @property
    def version(self) -> int:
        """Of the wire. A message above WIRE_VERSION comes from newer code: give it back, do not run it."""
        version: int = self.meta.get("v", 1)
        return version


_make = maker(JobEnvelope)


def encode(definition: JobDefinition, *, identifier: str, queue: str, signer: EnvelopeSigner, now: float) -> bytes:
    """Return the body of a message, signed.

    Args:
        definition: The job; its own `identifier` and `queue` are not looked at.
        identifier: The message's id.
        queue: Where it goes.
        signer: Its first key signs; without a key the signature is "".
        now: Unix time, from which `expires_in` counts.

    Raises:
        InvalidJob: The payload was changed after the check, to something that JSON cannot carry.
    """
    meta = _wire_meta(definition, now)
    schedule = rfc3339(definition.scheduled_at) if definition.scheduled_at else None
    try:
        signed = canonical(definition.handler, definition, queue, identifier, meta) if signer.active else b""
        sig = signer.sign(signed)
        return _body(definition.handler, definition, queue, identifier, schedule, meta, sig)
    except TypeError as error:
        raise InvalidJob(f"the payload of job {definition.handler!r} is no JSON any more: {error}") from error


def sign_again(envelope: JobEnvelope, queue: str, signer: EnvelopeSigner) -> bytes:
    """Return the body of the same message for another queue: all it says, signed anew. For who moves messages.

    Only of an envelope that `verify` has passed: what this signs is believed.
    """
    moved = replace(envelope, queue=queue)
    sig = signer.sign(canonical_bytes(moved)) if signer.active else ""
    return _body(moved.job, moved, queue, moved.identifier, moved.schedule, moved.meta, sig)


def _body(
    job: str,
    says: JobDefinition | JobEnvelope,
    queue: str,
    identifier: str,
    schedule: str | None,
    meta: dict[str, Any],
    sig: str,
) -> bytes:
    """Return the wire object, its fields in their order. `says`: what has the others."""
    body = {
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
        body["meta"] = meta
    body["_sig"] = sig
    return orjson.dumps(body)


def decode(body: bytes, *, attempts: int) -> JobEnvelope:
    """Read a body. Size and depth are checked before it is parsed.

    Args:
        body: The wire bytes. Unknown fields in it are ignored.
        attempts: As the backend counts them.

    Raises:
        MalformedEnvelope: Above 1 MiB, deeper than 64, no JSON object, or a field that is missing or of the wrong
            type; the text names it.
    """
    if len(body) > MAX_BODY_BYTES:
        raise MalformedEnvelope(f"the body has more than {MAX_BODY_BYTES} bytes")
    # Counting is far cheaper than measuring, and most bodies have fewer brackets than may be open at once.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise MalformedEnvelope(f"the body is nested more than {MAX_DEPTH} deep")
    try:
        wire = orjson.loads(body)
    except ValueError as error:
        raise MalformedEnvelope(f"the body is no JSON: {error}") from None
    if type(wire) is not dict:
        raise MalformedEnvelope(f"the body is {shown(wire)}, not a JSON object")
    return _read(wire, attempts)


def decode_again(body: bytes, *, attempts: int) -> JobEnvelope:
    """Decode a body that `decode` has accepted before, in another process of ours: nothing is checked again.

    Raises:
        ValueError: It is not a JSON object.
    """
    wire = orjson.loads(body)
    try:
        job, payload, queue, priority, retries, _, name, identifier, key, schedule = _ALL_FIELDS(wire)
        sig = wire["_sig"]
    except (KeyError, TypeError):
        return decode(body, attempts=attempts)
    meta = wire.get("meta") or {}
    return _make(job, payload, queue, priority, retries, attempts, name, identifier, key, schedule, meta, sig)


def verify(body: bytes, envelope: JobEnvelope, signer: EnvelopeSigner, queue: str) -> None:
    """Prove that a message is what its producer signed, and was sent to this queue.

    Args:
        body: The wire bytes; not read again, because what is compared is made from the decoded values.
        envelope: `decode(body)`.
        signer: Its keys; without any, only the queue is checked.
        queue: The queue it was fetched from.

    Raises:
        BadSignature: The signature is missing or wrong under every key.
        MalformedEnvelope: It was signed for another queue.
    """
    del body
    if signer.active and not signer.verify(canonical_bytes(envelope), envelope.sig):
        raise BadSignature("the signature is wrong" if envelope.sig else "the signature is missing")
    if envelope.queue != queue:
        raise MalformedEnvelope(f"the message was sent to queue {envelope.queue!r} and fetched from {queue!r}")


def _wire_meta(definition: JobDefinition, now: float) -> dict[str, Any]:
    meta = dict(definition.meta)
    if definition.timeout is not None:
        meta["_timeout"] = definition.timeout
    if definition.single_instance:
        meta["_singleInstance"] = True
    if definition.expires_in is not None:
        meta["_expires"] = now + definition.expires_in
    if definition.concurrency_key is not None:
        meta["_concurrencyKey"] = definition.concurrency_key
    return meta


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
        return _read({**_MAY_BE_ABSENT, **_complete(wire)}, attempts)
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
    return _make(job, payload, queue, priority, retries, attempts, name, identifier, key, schedule, meta or {}, sig)


def _complete(wire: dict[str, Any]) -> dict[str, Any]:
    """Return the same object, if nothing is missing that may not be."""
    if any(rule.required and rule.name not in wire for rule in RULES):
        raise MalformedEnvelope(complaint(wire))
    return wire
