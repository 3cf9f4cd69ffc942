"""Shared parts of the SQLite and Postgres backends: rows of messages, leases as rows, connections at rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from jobpool.broker.claim_store import QueueMessage
from jobpool.broker.values import Message, State
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.batches import BatchStatus
from jobpool.message.lease import JobLease
from jobpool_backends.shared import MICRO, unix_time

BULK_BATCH_MESSAGES = 500  # in each transaction


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class IdleConnections(Generic[C]):
    """The connections of one process that wait for their next use, by whatever thread; none crosses a fork.

    `place` names the database in errors.
    """

    def __init__(self, place: str) -> None:
        self.closed = False
        self._place = place
        self._pid = os.getpid()
        self._idle: list[C] = []

    def check_usable(self) -> None:
        """Raise when this database was closed, or inherited by a fork."""
        if self.closed:
            raise BackendUnavailable(f"{self._place} was closed here: open the backend again")
        if os.getpid() != self._pid:
            raise ConfigurationError(
                f"{self._place} was opened by process {self._pid}, before a fork, and connections do not survive"
                " that: open the backend after the fork, in the process that uses it"
            )

    def close(self) -> None:
        """Close the connections; one that is in use is closed when its user is done with it. Safe to call twice."""
        self.closed = True
        if os.getpid() == self._pid:
            self._close_idle()

    def take(self) -> C | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give_back(self, connection: C) -> None:
        self._idle.append(connection)
        if self.closed:
            self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # several threads may close: each pops its own
            while True:
                self._idle.pop().close()


def number_of(lease: JobLease) -> int:
    """Return the message's sequence number; 0, which no message has, for a lease of another backend."""
    return lease.token if isinstance(lease.token, int) else 0


def read_message(row: Sequence[Any], state: State, claim: str | None) -> Message:
    """Return the message of a row that has these columns.

    seq, id, queue, handler, priority, attempts, crashes, deliveries, enqueued_at, available_at, body, reason,
    last_error, cause, died_at, deadline_wall, claim, claims, ends_at.
    """
    seq, ident, queue, *counters = row[:8]
    enqueued_at, available_at, *texts = row[8:14]
    died_at, deadline, _, claims, ends_at = row[14:19]
    ends = unix_time(died_at), unix_time(deadline), claim, claims, unix_time(ends_at), str(seq)
    columns = [ident, queue, state, *counters, enqueued_at / MICRO, available_at / MICRO, *texts, *ends]
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
