"""A step: one write transaction of a call, with its time, the counts that it changes, and what it remembers.

A lease's deadline is kept twice. Within one boot CLOCK_BOOTTIME decides, because nobody can set it; after a reboot it
has started again, and the wall clock is all there is.

Counts a queue and state are kept in the transaction that moves the messages: stats cost the same at any length. A
repeated request is harmless because a call is remembered for a minute, and an id that a producer gave for ten. That is
one row a call, not a message.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from jobpool.broker.values import ENQUEUE_MEMORY, REMEMBER_CALLS
from jobpool.clock import Clock
from jobpool_backends.shared import MICRO, DeadCaps, micros
from jobpool_backends.sqlite.schema import DEAD, EACH, LEASED, POSTED

POST_CLAIMED = 6  # counts leased posts, which are leased messages in the table: `LEASED` in the counts is jobs alone
EXPIRED = 7  # counts posts that have ended with their lives, ever

SWEEP_BATCH_ROWS = 2000
EVICT_BATCH_MESSAGES = 500  # at most in one transaction, by age and by number each; the next one goes on

_RECALL = "SELECT answer FROM calls WHERE id = ? AND until > ?"
_REMEMBER = "INSERT OR REPLACE INTO calls VALUES (?, ?, ?)"
_REMEMBER_ENDED = "INSERT OR REPLACE INTO ended VALUES (?, ?)"
_DELETE = f"DELETE FROM messages WHERE seq IN {EACH}"
_DELETE_BODY = f"DELETE FROM bodies WHERE seq IN {EACH}"
_OLDEST = "SELECT seq, id, given FROM messages INDEXED BY messages_dead WHERE queue = ? AND state = 3"
_IN_ORDER = "ORDER BY died_at, seq LIMIT"
_TOO_OLD = f"{_OLDEST} AND died_at <= ? {_IN_ORDER} {EVICT_BATCH_MESSAGES}"
_TOO_MANY = f"{_OLDEST} {_IN_ORDER} ?"
_IS_ANY_TOO_OLD = f"SELECT EXISTS ({_OLDEST} AND died_at <= ?)"
_EVICTED = "UPDATE queues SET evicted = evicted + ? WHERE name = ?"


def _adding(*columns: str) -> str:
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in columns)
    values = f"(name, {', '.join(columns)}) VALUES (?{', ?' * len(columns)})"
    return f"INSERT INTO queues {values} ON CONFLICT (name) DO UPDATE SET {sums}"


_ADD = _adding("waiting", "delayed", "leased", "dead")
_ADD_POSTS = _adding("posts", "posts_delayed", "posts_claimed", "expired")


class ClockReading(Struct, frozen=True):
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
        """Count messages that came into this state; below 0, messages that are gone."""
        self._changes[queue][state] += messages

    def move(self, queue: str, before: int, after: int, messages: int = 1) -> None:
        changes = self._changes[queue]
        changes[before] -= messages
        changes[after] += messages

    def write(self, connection: sqlite3.Connection) -> None:
        """Add what was collected to the table, and forget it."""
        for queue, changes in self._changes.items():
            jobs, posts = changes[:POSTED], changes[POSTED:]
            if any(jobs):
                connection.execute(_ADD, (queue, *jobs))
            if any(posts):
                connection.execute(_ADD_POSTS, (queue, *posts))
        self._changes.clear()


class Step(Struct):
    """A write transaction. Its end writes the counts. `frees_jobs`: threads that wait for jobs should look.

    `ends_jobs`: how many ends those should hear of who wait for results. `ended_members`: by batch, its members that
    ended and how, until `at_end` counts them (batches.py).
    """

    connection: sqlite3.Connection
    now: ClockReading
    counts: Counts = field(default_factory=Counts)
    frees_jobs: bool = False
    ends_jobs: int = 0
    ended_members: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    at_end: Callable[[Step], None] | None = None

    def finish(self) -> None:
        """Write what was gathered. Call it last."""
        if self.at_end is not None:
            self.at_end(self)
        self.counts.write(self.connection)

    def execute(self, sql: str, arguments: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, arguments)

    def recall(self, call: str) -> str | None:
        """Return the answer that `remember` kept under this id; None if it is too long ago or never was."""
        row = self.connection.execute(_RECALL, (call, self.now.wall)).fetchone()
        return row[0] if row else None

    def remember(self, call: str, answer: str) -> None:
        self.connection.execute(_REMEMBER, (call, self.now.wall + micros(REMEMBER_CALLS), answer))

    def remember_ended(self, idents: Iterable[str], ended_at: int | None = None) -> None:
        """Keep the ids of messages that have come to their end; None = now."""
        until = (self.now.wall if ended_at is None else ended_at) + micros(ENQUEUE_MEMORY)
        self.connection.executemany(_REMEMBER_ENDED, [(ident, until) for ident in idents])

    def delete(self, sequence: Sequence[int], given: Sequence[str] = ()) -> None:
        """Remove messages, and remember the ids that were given to them."""
        if sequence:
            numbers = json.dumps(sequence)
            self.connection.execute(_DELETE, (numbers,))
            self.connection.execute(_DELETE_BODY, (numbers,))
        if given:
            self.remember_ended(given)

    def evict(self, queues: Iterable[str], caps: DeadCaps) -> None:
        """Remove the dead letters that are beyond the caps, if there are any, and count them."""
        if not caps:
            return
        self.counts.write(self.connection)
        for queue in queues:
            if caps.age:
                self._evict(queue, self.execute(_TOO_OLD, (queue, self.now.wall - caps.age)).fetchall())
            over = _count_dead(self.connection, queue) - caps.most if caps.most else 0
            if over > 0:
                self._evict(queue, self.execute(_TOO_MANY, (queue, min(over, EVICT_BATCH_MESSAGES))).fetchall())

    def _evict(self, queue: str, rows: list[tuple[int, str, int]]) -> None:
        if not rows:
            return
        self.delete([seq for seq, _, _ in rows], [ident for _, ident, given in rows if given])
        self.execute(_EVICTED, (len(rows), queue))
        self.counts.add(queue, DEAD, -len(rows))
        self.counts.write(self.connection)


def is_over(connection: sqlite3.Connection, queue: str, caps: DeadCaps, now: int) -> bool:
    if caps.most and _count_dead(connection, queue) > caps.most:
        return True
    return bool(caps.age and connection.execute(_IS_ANY_TOO_OLD, (queue, now - caps.age)).fetchone()[0])


def _count_dead(connection: sqlite3.Connection, queue: str) -> int:
    row = connection.execute("SELECT dead FROM queues WHERE name = ?", (queue,)).fetchone()
    return row[0] if row else 0


def counted_as(state: int, handler: str) -> int:
    """Return where the counts have a message of this state and handler."""
    return POST_CLAIMED if state == LEASED and not handler else state


def sweeping(table: str, key: str) -> str:
    """Return SQL that drops a piece of the rows past their `until`; `key` is the table's primary key."""
    oldest = f"SELECT {key} FROM {table} WHERE until <= ? ORDER BY until LIMIT {SWEEP_BATCH_ROWS}"
    return f"DELETE FROM {table} WHERE ({key}) IN ({oldest})"


class Sweeper:
    """A sweeper of outdated rows, a bounded piece at a time, within write transactions.

    Shared by threads without a lock: all that a race can do is sweep once too often. `tables` → their primary keys;
    `also`: called with each sweep.
    """

    def __init__(self, tables: Mapping[str, str], also: Callable[[Step], None] | None = None) -> None:
        self._next = 0
        self._also = also
        self._statements = [sweeping(table, key) for table, key in tables.items()]

    def sweep(self, step: Step) -> bool:
        """Delete a piece, when a second has passed since the last or that one was full; whether it looked."""
        now = step.now.wall
        if now < self._next <= now + MICRO:
            return False
        swept = max(step.execute(sql, (now,)).rowcount for sql in self._statements)
        self._next = now if swept >= SWEEP_BATCH_ROWS else now + MICRO
        if self._also is not None:
            self._also(step)
        return True


def read_clock(clock: Clock, boot: int) -> ClockReading:
    return ClockReading(micros(clock.wall()), micros(clock.boot()), boot)


@cache
def this_boot() -> int:
    """Return a positive number for this boot, and for this time namespace, which may shift CLOCK_BOOTTIME.

    Where the system has no name for its boot it stands for this process: between two the wall clock decides.
    """
    name, namespace = secrets.token_hex(8), ""
    with suppress(OSError):
        name = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    with suppress(OSError):  # kernels before 5.6 have no time namespaces
        namespace = os.readlink("/proc/self/ns/time")
    return int.from_bytes(hashlib.sha256(f"{name} {namespace}".encode()).digest()[:6], "big")
