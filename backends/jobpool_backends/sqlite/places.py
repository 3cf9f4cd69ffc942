"""Idempotency keys and holds, within one write transaction.

A hold says which lease has the place: the message's number and the holder. It is live exactly while that lease is, and
the message itself tells that. One that is not is removed when its name is next asked for, or when the sweep comes by.
"""

from __future__ import annotations

import sqlite3

from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.facts import Fact
from jobpool_backends.sqlite.schema import LEASED

_IS_DONE = "SELECT 1 FROM done WHERE queue = ? AND key = ? AND until > ?"
_DONE = "INSERT OR REPLACE INTO done VALUES (?, ?, ?)"
_FORGET = "DELETE FROM done WHERE queue = ? AND key = ?"
_HELD = """
SELECT holds.seq, messages.id, messages.state IS 2 AND messages.holder = holds.holder, boot, deadline, deadline_wall
FROM holds INDEXED BY holds_by_name LEFT JOIN messages ON messages.seq = holds.seq
WHERE holds.queue = ? AND holds.name = ?
"""
_OCCUPY = "INSERT OR REPLACE INTO holds (seq, name, queue, holder) VALUES (?, ?, ?, ?)"
_LEAVE = "DELETE FROM holds WHERE seq = ? AND name = ?"

HOLD_SWEEP_PAGE = 200
"""Holds that one sweep looks at."""
_PAGE = f"""
SELECT page.seq, page.name, messages.state IS {LEASED} AND messages.holder = page.holder
FROM (SELECT seq, name, holder FROM holds WHERE (seq, name) > (?, ?) ORDER BY seq, name LIMIT {HOLD_SWEEP_PAGE}) AS page
LEFT JOIN messages ON messages.seq = page.seq
"""


class Places:
    """The places that one call sees and grants. Places under a name are read once, and then kept up to date."""

    def __init__(self, connection: sqlite3.Connection, now: Moment) -> None:
        self._connection = connection
        self._now = now
        self._live: dict[tuple[str, str], dict[int, str]] = {}

    def is_done(self, queue: str, key: str) -> bool:
        return bool(self._connection.execute(_IS_DONE, (queue, key, self._now.wall)).fetchone())

    def mark_done(self, queue: str, key: str, keep: int) -> None:
        self._connection.execute(_DONE, (queue, key, self._now.wall + keep))

    def forget(self, queue: str, key: str) -> bool:
        """Forget that the key is done; return whether it was."""
        was_done = self.is_done(queue, key)
        self._connection.execute(_FORGET, (queue, key))
        return was_done

    def others(self, queue: str, name: str, seq: int) -> int:
        """Return how many other messages hold a place under this name."""
        live = self.live(queue, name)
        return len(live) - (seq in live)

    def occupy(self, name: str, message: Fact) -> None:
        """Give the current lease of this message a place, instead of that of an earlier lease."""
        self._connection.execute(_OCCUPY, (message.seq, name, message.queue, message.holder))
        self.live(message.queue, name)[message.seq] = ""

    def live(self, queue: str, name: str) -> dict[int, str]:
        """Return the messages that hold places under this name, by their numbers: their ids."""
        known = self._live.get((queue, name))
        if known is None:
            known = self._live[queue, name] = self._read(queue, name)
        return known

    def _read(self, queue: str, name: str) -> dict[int, str]:
        rows = self._connection.execute(_HELD, (queue, name)).fetchall()
        live = {row[0]: row[1] for row in rows if row[2] and not self._now.is_past(*row[3:])}
        ended = [(row[0], name) for row in rows if not row[2]]
        if ended:
            self._connection.executemany(_LEAVE, ended)
        return live


def holders(connection: sqlite3.Connection, queue: str, name: str, now: Moment) -> list[str]:
    """Return the ids of the messages that hold places under a name. Reads only."""
    rows = connection.execute(_HELD, (queue, name))
    return sorted(row[1] for row in rows if row[2] and not now.is_past(*row[3:]))


def sweep(connection: sqlite3.Connection, after: tuple[int, str]) -> tuple[int, str]:
    """Remove the holds of a page after `after` whose lease has ended; return where the next sweep begins."""
    rows = connection.execute(_PAGE, after).fetchall()
    ended = [row[:2] for row in rows if not row[2]]
    if ended:
        connection.executemany(_LEAVE, ended)
    return rows[-1][:2] if len(rows) == HOLD_SWEEP_PAGE else (0, "")
