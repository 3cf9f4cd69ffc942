"""Messages on their way in."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from jobpool.backend import NewMessage
from jobpool_backends.shared import micros
from jobpool_backends.sqlite.schema import DELAYED, WAITING
from jobpool_backends.sqlite.tally import Tally

_LIVE_OR_DEAD = "SELECT id FROM messages WHERE id IN (SELECT value FROM json_each(?))"
_ENDED = "SELECT id FROM ended WHERE id IN (SELECT value FROM json_each(?)) AND until > ?"
_LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'messages'"
_INSERT = """
INSERT INTO messages (seq, id, given, queue, handler, priority, state, enqueued_at, available_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_BODY = "INSERT INTO bodies (seq, body) VALUES (?, ?)"


def add(connection: sqlite3.Connection, messages: Sequence[NewMessage], now: int, tally: Tally) -> None:
    """Insert those whose id is not known yet, in their order."""
    fresh = _fresh(connection, messages, now)
    row = connection.execute(_LAST_SEQ).fetchone()
    first = row[0] + 1 if row else 1
    rows = [_row(seq, message, now) for seq, message in enumerate(fresh, first)]
    connection.executemany(_INSERT, rows)
    connection.executemany(_INSERT_BODY, [(seq, message.body) for seq, message in enumerate(fresh, first)])
    for row in rows:
        tally.add(row[3], row[6])


def _row(seq: int, message: NewMessage, now: int) -> tuple[int, str, bool, str, str, int, int, int, int]:
    due = micros(message.due) if message.due is not None else now
    state, available_at = (DELAYED, due) if due > now else (WAITING, now)
    return seq, message.id, message.given, message.queue, message.handler, message.priority, state, now, available_at


def _fresh(connection: sqlite3.Connection, messages: Sequence[NewMessage], now: int) -> list[NewMessage]:
    by_id: dict[str, NewMessage] = {}
    for message in messages:
        by_id.setdefault(message.id, message)
    for ident in _known(connection, by_id.values(), now):
        del by_id[ident]
    return list(by_id.values())


def _known(connection: sqlite3.Connection, messages: Iterable[NewMessage], now: int) -> set[str]:
    known = {row[0] for row in connection.execute(_LIVE_OR_DEAD, (json.dumps([new.id for new in messages]),))}
    given = [message.id for message in messages if message.given]
    if given:
        known.update(row[0] for row in connection.execute(_ENDED, (json.dumps(given), now)))
    return known
