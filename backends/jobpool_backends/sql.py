"""Shared parts of the SQLite and Postgres backends: rows of messages, leases as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobpool.broker.claim_store import QueueMessage
from jobpool.broker.values import Message, State
from jobpool.message.batches import BatchStatus
from jobpool.message.envelope import OVERSIZED
from jobpool.message.lease import JobLease
from jobpool_backends.shared import MICRO, unix_time

BULK_BATCH_MESSAGES = 500  # in each transaction


def number_of(lease: JobLease) -> int:
    """Return the message's sequence number; 0, which no message has, for a lease of another backend."""
    return lease.token if isinstance(lease.token, int) else 0


def read_message(row: Sequence[Any], state: State, claim: str | None) -> Message:
    """Return the message of a row that has these columns.

    seq, id, queue, handler, priority, attempts, crashes, deliveries, enqueued_at, available_at, body, reason,
    last_error, cause, died_at, deadline_wall, claim, claims, ends_at. Anything but bytes stands for a large body.
    """
    seq, ident, queue, *counters = row[:8]
    enqueued_at, available_at, body, *texts = row[8:14]
    died_at, deadline, _, claims, ends_at = row[14:19]
    ends = unix_time(died_at), unix_time(deadline), claim, claims, unix_time(ends_at), str(seq)
    body = body if isinstance(body, bytes) else OVERSIZED
    columns = [ident, queue, state, *counters, enqueued_at / MICRO, available_at / MICRO, body, *texts, *ends]
    return Message(*columns)


def read_batch(row: Sequence[Any], read_list: Callable[[Any], Iterable[str]] = tuple) -> BatchStatus:
    """Return the batch of a row of these columns, after which others may come. `read_list` reads the two lists.

    id, open, total, succeeded, failed, cancelled, failed_ids, created_at, ended_at, parent, nested, stopped.
    """
    failed_ids, created_at, ended_at, parent, nested, stopped = row[6:12]
    times = created_at / MICRO, unix_time(ended_at)
    ends = [tuple(read_list(failed_ids)), *times, parent, tuple(read_list(nested)), bool(stopped)]
    columns = [row[0], bool(row[1]), *row[2:6], *ends]
    return BatchStatus(*columns)


def read_queue_message(queue: str, claim: str | None, row: Sequence[Any], body: bytes) -> QueueMessage:
    """Return the message of a row that has the columns below, in this order; its body is read by the caller."""
    seq, ident, _, handler, priority, enqueued_at, claims, ends_at = row[:8]
    enqueued, ends = enqueued_at / MICRO, unix_time(ends_at)
    return QueueMessage(ident, queue, body, handler, priority, enqueued, claims, claim, ends, str(seq))
