"""Counts a queue and state, kept in the transaction that moves the messages: stats cost the same at any length."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

_ADD = """
INSERT INTO queues (name, waiting, delayed, leased, dead) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    waiting = waiting + excluded.waiting, delayed = delayed + excluded.delayed,
    leased = leased + excluded.leased, dead = dead + excluded.dead
"""


class Tally:
    """What one transaction moves. Collect, then `write` before the commit."""

    def __init__(self) -> None:
        self._changes: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def add(self, queue: str, state: int, messages: int = 1) -> None:
        """So many messages came into this state."""
        self._changes[queue][state] += messages

    def move(self, queue: str, before: int, after: int, messages: int = 1) -> None:
        """So many messages went from one state to another."""
        changes = self._changes[queue]
        changes[before] -= messages
        changes[after] += messages

    def remove(self, queue: str, state: int, messages: int = 1) -> None:
        """So many messages of this state are gone."""
        self._changes[queue][state] -= messages

    def write(self, connection: sqlite3.Connection) -> None:
        """Add it to the table, once: what was written is not collected any more."""
        for queue, changes in self._changes.items():
            if any(changes):
                connection.execute(_ADD, (queue, *changes))
        self._changes.clear()
