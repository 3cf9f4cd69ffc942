"""Messages on their way in."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import TypeVar

from jobpool.broker.claim_store import NewPost
from jobpool.broker.values import NewMessage
from jobpool_backends.shared import micros
from jobpool_backends.sqlite.calls import sweeping
from jobpool_backends.sqlite.counts import Counts
from jobpool_backends.sqlite.ending import EndedPost, remove_posts
from jobpool_backends.sqlite.schema import DELAYED, WAITING

_LIVE_OR_DEAD = """
SELECT seq, queue, state, id, given, ends_at FROM messages WHERE id IN (SELECT value FROM json_each(?))
"""
_ENDED = "SELECT id FROM ended WHERE id IN (SELECT value FROM json_each(?)) AND until > ?"
_LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'messages'"
_INSERT = """
INSERT INTO messages (seq, id, given, queue, handler, priority, state, enqueued_at, available_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_BODY = "INSERT INTO bodies (seq, body) VALUES (?, ?)"
_ENDOW = """
UPDATE messages
SET unique_key = ?, attempts = ?, crashes = ?, deliveries = ?, last_error = ?, cause = ?, last_crash = ?
WHERE seq = ?
"""
_ASKED = "json_each(:keys) AS asked CROSS JOIN"
_HAS_KEY = f"""
SELECT asked.key, messages.id FROM {_ASKED} messages INDEXED BY messages_unique
    ON queue = json_extract(asked.value, '$[0]') AND unique_key = json_extract(asked.value, '$[1]')
UNION ALL
SELECT asked.key, spent.id FROM {_ASKED} spent
    ON queue = json_extract(asked.value, '$[0]') AND spent.key = json_extract(asked.value, '$[1]') AND until > :now
"""
# A call with such keys also drops those that need not be remembered any longer, a piece at a time.
_SWEEP = sweeping("spent", "queue, key")

New = TypeVar("New", NewMessage, NewPost)


def add(connection: sqlite3.Connection, messages: Sequence[NewMessage], now: int, counts: Counts) -> dict[str, str]:
    """Insert those that are not known yet, in their order; the id of each whose unique key is known → who has it."""
    fresh = leave_out_known(connection, messages, now, counts)
    existing = _leave_out(connection, fresh, now)
    insert(connection, list(fresh.values()), now, counts)
    return existing


def insert(connection: sqlite3.Connection, messages: Sequence[NewMessage], now: int, counts: Counts) -> None:
    """Insert these, whatever is known."""
    first = next_seq(connection)
    rows = [_row(seq, message, now) for seq, message in enumerate(messages, first)]
    connection.executemany(_INSERT, rows)
    connection.executemany(INSERT_BODY, [(seq, message.body) for seq, message in enumerate(messages, first)])
    endowed = [_endowment(seq, message, now) for seq, message in enumerate(messages, first) if _is_endowed(message)]
    if endowed:
        connection.executemany(_ENDOW, endowed)
    for row in rows:
        counts.add(row[3], row[6])


def next_seq(connection: sqlite3.Connection) -> int:
    """Return the number of the next message, within a write transaction."""
    row = connection.execute(_LAST_SEQ).fetchone()
    return row[0] + 1 if row else 1


def _row(seq: int, message: NewMessage, now: int) -> tuple[int, str, bool, str, str, int, int, int, int]:
    due = micros(message.due) if message.due is not None else now
    state, available_at = (DELAYED, due) if due > now else (WAITING, now)
    return seq, message.id, message.given, message.queue, message.handler, message.priority, state, now, available_at


def _is_endowed(message: NewMessage) -> bool:
    """Return whether it brings what few messages have: a key, or a past."""
    return bool(
        message.unique_key is not None
        or message.deliveries
        or message.attempts
        or message.crashes
        or message.last_error is not None
        or message.cause is not None
    )


def _endowment(seq: int, message: NewMessage, now: int) -> tuple[str | int | None, ...]:
    counters = message.attempts, message.crashes, message.deliveries
    last_crash = now if message.crashes else None  # crashes that come with it count from here on
    return message.unique_key, *counters, message.last_error, message.cause, last_crash, seq


def leave_out_known(
    connection: sqlite3.Connection, messages: Iterable[New], now: int, counts: Counts
) -> dict[str, New]:
    """Return the messages whose id is not known, by their ids."""
    by_id: dict[str, New] = {}
    for message in messages:
        by_id.setdefault(message.id, message)
    for ident in _known(connection, by_id.values(), now, counts):
        del by_id[ident]
    return by_id


def _known(connection: sqlite3.Connection, messages: Iterable[New], now: int, counts: Counts) -> set[str]:
    rows = connection.execute(_LIVE_OR_DEAD, (json.dumps([new.id for new in messages]),)).fetchall()
    ended = [EndedPost._make(row) for row in rows if row[5] is not None and row[5] <= now]
    remove_posts(connection, ended, counts)
    known = {row[3] for row in rows} - {post.id for post in ended}
    given = [message.id for message in messages if message.given]
    if given:
        known.update(row[0] for row in connection.execute(_ENDED, (json.dumps(given), now)))
    return known


def _leave_out(connection: sqlite3.Connection, fresh: dict[str, NewMessage], now: int) -> dict[str, str]:
    """Take out of `fresh` what has the unique key of another; those ids → the ids that have the keys."""
    asking = [message for message in fresh.values() if message.unique_key is not None]
    if not asking:
        return {}
    connection.execute(_SWEEP, (now,))
    keys = [(message.queue, message.unique_key) for message in asking]
    rows = connection.execute(_HAS_KEY, {"keys": json.dumps(keys), "now": now})
    known = {keys[place]: ident for place, ident in rows}
    existing = {}
    for message, key in zip(asking, keys, strict=True):
        if key in known:
            existing[message.id] = known[key]
            del fresh[message.id]
        else:
            known[key] = message.id
    return existing
