"""Jobs on their way to a broker: checked, signed and numbered; and the ids that a producer is told."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from jobpool.broker.values import Edit, Existing, NewBatch, NewMessage, once_id
from jobpool.errors import InvalidJob, Unsupported
from jobpool.message.batches import NO_BATCHES, BatchCall
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, encode, sign_again, too_large
from jobpool.message.lease import JobLease
from jobpool.message.names import DEFAULT_QUEUE, check_identifier, check_queue
from jobpool.message.settlement import Abandon, Ack, Move, Settlement
from jobpool.message.signing import EnvelopeSigner

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend

Item = TypeVar("Item")

MAX_CALLBACK_BYTES = MAX_BODY_BYTES // 2  # the ids of failed jobs have to go in too
EDITS_IN_A_STEP = 250
EDITED_BYTES_IN_A_STEP = 4 * 2**20  # of bodies: other calls must not wait long for a step


def pack(
    to: QueueBackend,
    definition: JobDefinition,
    ident: str,
    callback_of: str | None = None,
    clock: Callable[[], float] | None = None,
) -> NewMessage:
    """Return the wire form of `definition` under this id. See `QueueBackend.pack`.

    `callback_of`: see `encode`. `clock`: Unix time, from which it expires; None = the broker is asked.
    """
    definition.require(to.capabilities.key_store, to.scheme)
    if definition.batch is not None and not to.capabilities.atomic_across_queues:
        raise Unsupported(NO_BATCHES.format(to.scheme))
    queue = definition.queue or DEFAULT_QUEUE
    now = 0.0 if definition.expires_in is None else (clock or to.time.now)()
    body = encode(definition, identifier=ident, queue=queue, signer=to.signer, now=now, callback_of=callback_of)
    if len(body) > MAX_BODY_BYTES:
        raise too_large(definition.handler, len(body))
    due = definition.scheduled_at.timestamp() if definition.scheduled_at else None
    given = definition.identifier is not None
    unique_key = definition.idempotency_key if definition.unique else None
    fields = ident, given, queue, definition.handler, definition.priority, due, body, unique_key
    return NewMessage(*fields, batch=definition.batch)


def pack_all(to: QueueBackend, definitions: Iterable[JobDefinition]) -> list[NewMessage]:
    """Pack each; draw the ids that are missing together, at a sixth of the cost."""
    chosen = list(definitions)
    drawn = secrets.token_hex(8 * len(chosen))
    return [pack(to, one, one.identifier or drawn[16 * n : 16 * n + 16]) for n, one in enumerate(chosen)]


def pack_once(to: QueueBackend, definition: JobDefinition, key: str) -> NewMessage:
    """Pack it under the id and the unique key that `key` gives it. See `QueueBackend.enqueue_once`."""
    packed = pack(to, definition, once_id(key))
    return replace(packed, given=True, unique_key=packed.unique_key or f"once:{packed.id}")


def pack_batch(to: QueueBackend, call: BatchCall, jobs: Sequence[JobDefinition]) -> NewBatch:
    """Return the batch that a call opens, with its callbacks on their way in."""
    callbacks = {
        name: pack(to, job, job.identifier or secrets.token_hex(8), call.id)
        for name, job in zip(call.callbacks, jobs, strict=True)
    }
    for name, new in callbacks.items():
        if len(new.body) > MAX_CALLBACK_BYTES:
            raise InvalidJob(f"the body of {name} has {len(new.body)} bytes; at most {MAX_CALLBACK_BYTES}")
    parent = None if call.parent is None else check_identifier(call.parent)
    return NewBatch(call.id, parent, **callbacks)


def brought_by(to: QueueBackend, lease: JobLease, settlement: Settlement) -> list[NewMessage]:
    """Return the messages that an accepted settlement adds to queues: follow-ups, or what moves."""
    if isinstance(settlement, Move):
        return [_moved(lease, settlement, to.signer)]
    return pack_all(to, settlement.follow_ups) if isinstance(settlement, Ack | Abandon) else []


def _moved(lease: JobLease, move: Move, signer: EnvelopeSigner) -> NewMessage:
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


def edit_batches(edits: Iterable[Edit]) -> Iterator[list[Edit]]:
    """Yield the edits in order, as many together as go into one step of a broker."""
    return in_batches(edits, EDITS_IN_A_STEP, EDITED_BYTES_IN_A_STEP, lambda edit: len(edit.body or b""))


def in_batches(items: Iterable[Item], most: int, size: int, measure: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield the items in order: up to `most` together, which `measure` up to `size`; one that is larger, alone.

    A full batch is yielded before the next item is asked for: that may come late, or not at all.
    """
    batch: list[Item] = []
    room = size
    for item in items:
        length = measure(item)
        if batch and length > room:
            yield batch
            batch, room = [], size
        batch.append(item)
        room -= length
        if len(batch) == most or room <= 0:
            yield batch
            batch, room = [], size
    if batch:
        yield batch


def ids_of(messages: Sequence[NewMessage], existing: Existing | None) -> list[str]:
    """Return the ids to tell the producer: of a message that was left out, the id that is known in its place."""
    known = existing or {}
    return [known.get(message.id, message.id) for message in messages]
