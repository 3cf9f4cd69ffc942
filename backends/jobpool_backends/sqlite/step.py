"""A step: one write transaction of a call, with its time and the counts that it changes.

A lease's deadline is kept twice. Within one boot CLOCK_BOOTTIME decides, because nobody can set it; after a reboot it
has started again, and the wall clock is all there is.

Counts a queue and state are kept in the transaction that moves the messages: stats cost the same at any length.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jobpool.clock import Clock
from jobpool_backends.shared import micros
from jobpool_backends.sqlite.schema import LEASED, POSTED

POST_CLAIMED = 6
"""Counts leased posts, which are leased messages in the table: `LEASED` in the counts is jobs alone."""

EXPIRED = 7
"""Counts posts that have ended with their lives, ever."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = "/proc/self/ns/time"
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


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading in microseconds: `wall` Unix time, `boottime` CLOCK_BOOTTIME of the boot named `boot`."""

    wall: int
    boottime: int
    boot: int

    def is_past(self, boot: int, deadline: int, deadline_wall: int) -> bool:
        """Return whether a lease with this deadline has ended; at the deadline it has."""
        return deadline <= self.boottime if boot == self.boot else deadline_wall <= self.wall

    def arguments(self, queue: str) -> dict[str, str | int]:
        """Return the parameters of statements that find what has ended in a queue."""
        return {"queue": queue, "boot": self.boot, "boottime": self.boottime, "wall": self.wall}


class Counts:
    """Changes of one transaction. Collect, then `write` before the commit."""

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
        """Add what was collected to the table, and forget it."""
        for queue, changes in self._changes.items():
            jobs, posts = changes[:POSTED], changes[POSTED:]
            if any(jobs):
                connection.execute(_ADD, (queue, *jobs))
            if any(posts):
                connection.execute(_ADD_POSTS, (queue, *posts))
        self._changes.clear()


@dataclass(slots=True)
class Step:
    """A write transaction. Its end writes the counts. `frees_jobs`: threads that wait for jobs should look."""

    connection: sqlite3.Connection
    now: Moment
    counts: Counts = field(default_factory=Counts)
    frees_jobs: bool = False


def counted_as(state: int, handler: str) -> int:
    """Return where the counts have a message of this state and handler."""
    return POST_CLAIMED if state == LEASED and not handler else state


def read_moment(clock: Clock, boot: int) -> Moment:
    return Moment(micros(clock.wall()), micros(clock.boot()), boot)


@cache
def this_boot() -> int:
    """Return a positive number for this boot, and for this time namespace, which may shift CLOCK_BOOTTIME."""
    try:
        name = _BOOT_ID.read_text("utf-8").strip()
    except OSError:
        name = "unknown"
    try:
        namespace = os.readlink(_TIME_NAMESPACE)
    except OSError:  # kernels before 5.6 have no time namespaces
        namespace = ""
    return int.from_bytes(hashlib.sha256(f"{name} {namespace}".encode()).digest()[:6], "big")
