"""Starts that are counted, within one write transaction.

A start is known by its token for longer than its window, so that a repeat whose first answer was lost is known for one.
"""

from __future__ import annotations

import sqlite3

from jobpool.broker.values import REMEMBER_CALLS
from jobpool.message.guards import Rate
from jobpool_backends.shared import micros

# A clock that was set back leaves starts in the future: do not wait for those further off than a window.
_RECENT = """
SELECT at FROM starts INDEXED BY starts_by_time
WHERE queue = :queue AND name = :name AND at > :now - :window AND at < :now + :window
"""
_COUNT = f"SELECT count(*) FROM ({_RECENT} LIMIT :most)"
_LAST_BUT = f"{_RECENT} ORDER BY at DESC LIMIT 1 OFFSET :most - 1"
_IS_KNOWN = "SELECT 1 FROM starts WHERE queue = ? AND name = ? AND token = ?"
_START = "INSERT OR IGNORE INTO starts (queue, name, token, at, until) VALUES (?, ?, ?, ?, ?)"


class Rates:
    """The rates that one call sees and counts. Each rate's room is read once, in at most as many steps as its limit."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self._room: dict[tuple[str, Rate], int] = {}

    def until_room(self, queue: str, rate: Rate, token: str) -> int:
        """Return 0 if this start is within the rate, or was counted before; else microseconds until there is room."""
        if self._room_of(queue, rate) > 0 or self._is_known(queue, rate, token):
            return 0
        oldest: int = self._connection.execute(_LAST_BUT, self._arguments(queue, rate)).fetchone()[0]
        return oldest + micros(rate.window) - self._now

    def count(self, queue: str, name: str, window: float, token: str) -> None:
        """Count this start, if it was not counted before."""
        until = self._now + micros(window + REMEMBER_CALLS)
        if self._connection.execute(_START, (queue, name, token, self._now, until)).rowcount:
            for where, other in self._room:
                if (where, other.name) == (queue, name):
                    self._room[where, other] -= 1

    def _room_of(self, queue: str, rate: Rate) -> int:
        room = self._room.get((queue, rate))
        if room is None:
            counted = self._connection.execute(_COUNT, self._arguments(queue, rate)).fetchone()[0]
            room = self._room[queue, rate] = rate.most - counted
        return room

    def _is_known(self, queue: str, rate: Rate, token: str) -> bool:
        return bool(self._connection.execute(_IS_KNOWN, (queue, rate.name, token)).fetchone())

    def _arguments(self, queue: str, rate: Rate) -> dict[str, str | int]:
        return {
            "queue": queue,
            "name": rate.name,
            "now": self._now,
            "window": micros(rate.window),
            "most": rate.most,
        }
