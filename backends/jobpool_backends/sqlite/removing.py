"""Messages on their way out: whatever they are, or dead letters that are too many or too old, which are counted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from jobpool_backends.shared import DeadCaps
from jobpool_backends.sqlite import calls
from jobpool_backends.sqlite.counts import Counts
from jobpool_backends.sqlite.schema import DEAD

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


def is_over(connection: sqlite3.Connection, queue: str, caps: DeadCaps, now: int) -> bool:
    """Return whether a queue has dead letters that are to go."""
    if caps.most and _count(connection, queue) > caps.most:
        return True
    if not caps.age:
        return False
    return bool(connection.execute(_IS_ANY_TOO_OLD, (queue, now - caps.age)).fetchone()[0])


def evict(connection: sqlite3.Connection, queues: Sequence[str], caps: DeadCaps, now: int) -> None:
    """Remove what is beyond the caps, in a write transaction whose counts has been written."""
    counts = Counts()
    for queue in queues:
        if caps.age:
            _remove(connection, queue, connection.execute(_TOO_OLD, (queue, now - caps.age)).fetchall(), now, counts)
        over = _count(connection, queue) - caps.most if caps.most else 0
        if over > 0:
            oldest = connection.execute(_TOO_MANY, (queue, min(over, EVICT_BATCH_MESSAGES))).fetchall()
            _remove(connection, queue, oldest, now, counts)
    counts.write(connection)


def delete(connection: sqlite3.Connection, sequence: Sequence[int]) -> None:
    """Remove messages, whatever they are."""
    numbers = json.dumps(sequence)
    connection.execute(_DELETE, (numbers,))
    connection.execute(_DELETE_BODY, (numbers,))


def _remove(
    connection: sqlite3.Connection, queue: str, rows: list[tuple[int, str, int]], now: int, counts: Counts
) -> None:
    if not rows:
        return
    delete(connection, [seq for seq, _, _ in rows])
    calls.remember_ended(connection, [ident for _, ident, given in rows if given], now)
    connection.execute(_EVICTED, (len(rows), queue))
    counts.remove(queue, DEAD, len(rows))
    counts.write(connection)


def _count(connection: sqlite3.Connection, queue: str) -> int:
    row = connection.execute(_COUNT, (queue,)).fetchone()
    return row[0] if row else 0
