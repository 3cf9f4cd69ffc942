"""Counts a queue and state, kept in the transaction that moves the messages: stats cost the same at any length."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from jobpool_backends.sqlite.schema import LEASED, POSTED

POST_CLAIMED = 6
"""Counts leased posts, which are leased messages in the table: `LEASED` here counts jobs alone."""

EXPIRED = 7
"""Counts posts that have ended with their lives, ever."""

_JOBS = POSTED
"""Jobs and dead letters stand before posts in the counts."""

_ADD = """
INSERT INTO queues (name, waiting, delayed, leased, dead) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    waiting = waiting + excluded.waiting, delayed = delayed + excluded.delayed,
    leased = leased + excluded.leased, dead = dead + excluded.dead
"""
# Plain jobs never write these.
_ADD_POSTS = """
INSERT INTO queues (name, posts, posts_delayed, posts_claimed, expired) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    posts = posts + excluded.posts, posts_delayed = posts_delayed + excluded.posts_delayed,
    posts_claimed = posts_claimed + excluded.posts_claimed, expired = expired + excluded.expired
"""


class Counts:
    """Moves of one transaction. Collect, then `write` before the commit."""

    def __init__(self) -> None:
        self._changes: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (EXPIRED + 1))

    def add(self, queue: str, state: int, messages: int = 1) -> None:
        """Count messages that came into this state."""
        self._changes[queue][state] += messages

    def move(self, queue: str, before: int, after: int, messages: int = 1) -> None:
        """Count messages that went from one state to another."""
        changes = self._changes[queue]
        changes[before] -= messages
        changes[after] += messages

    def remove(self, queue: str, state: int, messages: int = 1) -> None:
        """Count messages of this state that are gone."""
        self._changes[queue][state] -= messages

    def write(self, connection: sqlite3.Connection) -> None:
        """Add it to the table, once: what was written is not collected any more."""
        for queue, changes in self._changes.items():
            jobs, posts = changes[:_JOBS], changes[_JOBS:]
            if any(jobs):
                connection.execute(_ADD, (queue, *jobs))
            if any(posts):
                connection.execute(_ADD_POSTS, (queue, *posts))
        self._changes.clear()


def counted_as(state: int, handler: str) -> int:
    """Return where the counts have a message of this state and handler."""
    return POST_CLAIMED if state == LEASED and not handler else state
