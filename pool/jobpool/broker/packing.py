"""Messages made of definitions and of leases, signed, for any broker. No I/O but for the broker's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobpool.broker.broker_time import BrokerTime
from jobpool.broker.values import Existing, NewMessage, make_message
from jobpool.errors import InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, encode, sign_again
from jobpool.message.lease import JobLease
from jobpool.message.names import check_queue
from jobpool.message.settlement import Move
from jobpool.message.signing import EnvelopeSigner


def packed(definition: JobDefinition, ident: str, signer: EnvelopeSigner, time: BrokerTime) -> NewMessage:
    """Return the wire form of a definition under this id. Raises as `QueueBackend.pack`."""
    queue = check_queue(definition.queue or "default")
    now = 0.0 if definition.expires_in is None else time.now()
    body = encode(definition, identifier=ident, queue=queue, signer=signer, now=now)
    if len(body) > MAX_BODY_BYTES:
        raise InvalidJob(f"the body of job {definition.handler!r} has {len(body)} bytes; at most {MAX_BODY_BYTES}")
    due = definition.scheduled_at.timestamp() if definition.scheduled_at else None
    given = definition.identifier is not None
    unique_key = definition.idempotency_key if definition.unique else None
    return make_message(ident, given, queue, definition.handler, definition.priority, due, body, unique_key)


def under_once_id(message: NewMessage) -> NewMessage:
    """Return the message as `enqueue_once` adds it: its id is also its unique key, unless it has one."""
    return replace(message, given=True, unique_key=message.unique_key or f"once:{message.id}")


def moved(lease: JobLease, move: Move, signer: EnvelopeSigner) -> NewMessage:
    """Return the message of a lease as it goes on in another queue, signed for it anew."""
    envelope = lease.envelope
    return NewMessage(
        lease.id,
        given=True,
        queue=move.queue,
        handler=envelope.job,
        priority=envelope.priority,
        due=None,
        body=sign_again(envelope, check_queue(move.queue), signer),
        attempts=lease.attempts + move.attempts,
        crashes=lease.crashes + move.crashes,
        deliveries=lease.deliveries,
        last_error=move.error,
        cause=move.cause,
    )


def ids_of(messages: Sequence[NewMessage], existing: Existing | None) -> list[str]:
    """Return the ids to tell the producer: of a message that was left out, the id that is known in its place."""
    known = existing or {}
    return [known.get(message.id, message.id) for message in messages]
