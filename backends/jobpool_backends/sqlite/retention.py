"""Retention of answers of calls, of ids of ended messages, and of dead letters; and how messages are deleted.

A repeated request is harmless because a call is remembered for a minute, and an id that a producer gave for ten. That
is one row a call, not a message, written in the transaction of the call itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from jobpool.broker.values import ENQUEUE_MEMORY, REMEMBER_CALLS
from jobpool_backends.shared import MICRO, DeadCaps, micros
from jobpool_backends.sqlite.schema import DEAD
from jobpool_backends.sqlite.step import Step

SWEEP_BATCH_ROWS = 2000
EVICT_BATCH_MESSAGES = 500
"""At most in one transaction, by age and by number each; the next one goes on."""

_DELETE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
_DELETE_BODY = "DELETE FROM bodies WHERE seq IN (SELECT value FROM json_each(?))"
_OLDEST = "SELECT seq, id, given FROM messages INDEXED BY messages_dead WHERE queue = ? AND state = 3"
_IN_ORDER = "ORDER BY died_at, seq LIMIT"
_TOO_OLD = f"{_OLDEST} AND died_at <= ? {_IN_ORDER} {EVICT_BATCH_MESSAGES}"
_TOO_MANY = f"{_OLDEST} {_IN_ORDER} ?"
_IS_ANY_TOO_OLD = f"SELECT EXISTS ({_OLDEST} AND died_at <= ?)"
_COUNT = "SELECT dead FROM queues WHERE name = ?"
_EVICTED = "UPDATE queues SET evicted = evicted + ? WHERE name = ?"


def recall(step: Step, call: str) -> str | None:
    """Return the answer that `remember` kept under this id; None if it is too long ago or never was."""
    sql = "SELECT answer FROM calls WHERE id = ? AND until > ?"
    row = step.connection.execute(sql, (call, step.now.wall)).fetchone()
    return row[0] if row else None


def remember(step: Step, call: str, answer: str) -> None:
    """Keep the answer of a call."""
    until = step.now.wall + micros(REMEMBER_CALLS)
    step.connection.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", (call, until, answer))


def remember_ended(step: Step, idents: Iterable[str], ended_at: int | None = None) -> None:
    """Keep the ids of messages that have come to their end; None = now."""
    until = (step.now.wall if ended_at is None else ended_at) + micros(ENQUEUE_MEMORY)
    step.connection.executemany("INSERT OR REPLACE INTO ended VALUES (?, ?)", [(ident, until) for ident in idents])


def sweeping(table: str, key: str) -> str:
    """Return SQL that drops a piece of the rows past their `until`; `key` is the table's primary key."""
    oldest = f"SELECT {key} FROM {table} WHERE until <= ? ORDER BY until LIMIT {SWEEP_BATCH_ROWS}"
    return f"DELETE FROM {table} WHERE ({key}) IN ({oldest})"


class Sweeper:
    """A sweeper of outdated rows, a bounded piece at a time, within write transactions.

    Shared by threads without a lock: all that a race can do is sweep once too often. `tables` → their primary keys.
    """

    def __init__(self, tables: Mapping[str, str]) -> None:
        self._next = 0
        self._statements = [sweeping(table, key) for table, key in tables.items()]

    def sweep(self, step: Step) -> bool:
        """Delete a piece, when a second has passed since the last or that one was full; whether it looked."""
        now = step.now.wall
        if now < self._next <= now + MICRO:
            return False
        swept = max(step.connection.execute(sql, (now,)).rowcount for sql in self._statements)
        self._next = now if swept >= SWEEP_BATCH_ROWS else now + MICRO
        return True


def delete(connection: sqlite3.Connection, sequence: Sequence[int]) -> None:
    """Delete messages, whatever they are."""
    numbers = json.dumps(sequence)
    connection.execute(_DELETE, (numbers,))
    connection.execute(_DELETE_BODY, (numbers,))


def is_over(connection: sqlite3.Connection, queue: str, caps: DeadCaps, now: int) -> bool:
    """Return whether a queue has dead letters that are to go."""
    if caps.most and _count_dead(connection, queue) > caps.most:
        return True
    if not caps.age:
        return False
    return bool(connection.execute(_IS_ANY_TOO_OLD, (queue, now - caps.age)).fetchone()[0])


def evict(step: Step, queues: Iterable[str], caps: DeadCaps) -> None:
    """Remove the dead letters that are beyond the caps, if there are any, and count them."""
    if not caps:
        return
    step.counts.write(step.connection)
    for queue in queues:
        if caps.age:
            _evict(step, queue, step.connection.execute(_TOO_OLD, (queue, step.now.wall - caps.age)).fetchall())
        over = _count_dead(step.connection, queue) - caps.most if caps.most else 0
        if over > 0:
            limit = min(over, EVICT_BATCH_MESSAGES)
            _evict(step, queue, step.connection.execute(_TOO_MANY, (queue, limit)).fetchall())


def _evict(step: Step, queue: str, rows: list[tuple[int, str, int]]) -> None:
    if not rows:
        return
    delete(step.connection, [seq for seq, _, _ in rows])
    remember_ended(step, [ident for _, ident, given in rows if given])
    step.connection.execute(_EVICTED, (len(rows), queue))
    step.counts.remove(queue, DEAD, len(rows))
    step.counts.write(step.connection)


def _count_dead(connection: sqlite3.Connection, queue: str) -> int:
    row = connection.execute(_COUNT, (queue,)).fetchone()
    return row[0] if row else 0
