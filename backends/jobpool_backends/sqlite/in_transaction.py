"""Enqueue, and a handler's ack of its own message, within a transaction of the caller.

The caller's tables must be in the queue's file: SQLite commits over several files are not atomic in WAL mode. Waiters
are not woken, because that could only be done before the commit. They find the messages by the change counter, half a
second late at most.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jobpool.broker.values import Existing, NewMessage, Ticket
from jobpool.clock import Clock, SystemClock
from jobpool.errors import ConfigurationError, LeaseLost
from jobpool.message.guards import Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack
from jobpool_backends.shared import MICRO, DeadCaps, micros
from jobpool_backends.sql import number_of
from jobpool_backends.sqlite.enqueue import add
from jobpool_backends.sqlite.settle import settle_within
from jobpool_backends.sqlite.step import Step, read_clock


def enqueue(connection: object, path: str, messages: Sequence[NewMessage], clock: Clock) -> Existing:
    """Enqueue on the caller's connection. Raises `ConfigurationError`, or what sqlite3 raises."""
    with _ours(connection, path, clock) as step:
        return add(step, messages)


def make_ticket(lease: JobLease, path: str, boot: int) -> Ticket:
    ticket: Ticket = {"ack": f"{__name__}:{ack.__name__}", "path": path, "boot": boot}
    ticket |= {"id": lease.id, "queue": lease.queue, "seq": number_of(lease), "owner": lease.owner_token}
    if lease.guards is not None:
        ticket["keep"] = micros(lease.guards.keep)
        if lease.guards.key is not None:
            ticket["key"] = lease.guards.key
    return ticket


def ack(
    connection: object, ticket: Ticket, messages: Sequence[NewMessage] = (), *, clock: Clock | None = None
) -> Callable[[], bool]:
    """See `QueueBackend.ticket`. Raises `ConfigurationError`, too, for a connection that leads elsewhere."""
    lease = _lease(ticket)
    with _ours(connection, str(ticket["path"]), clock or SystemClock(), int(ticket["boot"])) as step:
        brought = {0: list(messages)} if messages else {}
        [answer] = settle_within(step, [(lease, Ack())], brought, f"ack:{lease.owner_token}", DeadCaps())
    if not answer:
        raise LeaseLost(f"the lease of message {lease.id} in queue {lease.queue!r} has ended: {answer.value}")
    return lambda: _is_open(step.connection)


def _lease(ticket: Ticket) -> JobLease:
    """Return as much of the lease as its ack needs."""
    lease = JobLease(
        str(ticket["id"]), str(ticket["queue"]), b"", ticket["seq"], str(ticket["owner"]), 0.0, backend="sqlite"
    )
    if "keep" not in ticket:
        return lease
    key = str(ticket["key"]) if "key" in ticket else None
    return lease.guarded(Guards(key=key, keep=int(ticket["keep"]) / MICRO))


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # closed, or another thread's
        return False


@contextmanager
def _ours(connection: object, path: str, clock: Clock, boot: int = 0) -> Iterator[Step]:
    """Yield a step on the caller's connection, with rows as plain tuples for as long as we use it."""
    if not isinstance(connection, sqlite3.Connection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise ConfigurationError(f"sqlite:// needs a connection of the sqlite3 module, not a {kind}")
    rows, texts = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        [file] = [row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"]
        if not file or not os.path.samefile(file, path):
            raise ConfigurationError(
                f"the connection leads to {file or 'memory'}, and the queue is in {path}: open that file"
            )
        _begin(connection)
        step = Step(connection, read_clock(clock, boot))
        yield step
        step.finish()
    finally:
        connection.row_factory, connection.text_factory = rows, texts


def _begin(connection: sqlite3.Connection) -> None:
    """Begin as sqlite3 does before the first write; but at once for writing, so that no snapshot is too old."""
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:  # from Python 3.12
        raise ConfigurationError(
            "the connection is in autocommit, with no transaction open: execute BEGIN IMMEDIATE first"
        )
    connection.execute("BEGIN IMMEDIATE")
