"""Take back messages whose lease or claim has expired; an expired claim charges nothing. Ended posts are removed.

The candidates are read without the lock, so that a reaper that finds nothing disturbs nobody. The write transaction
then reads them again under the same condition, and charges those that still meet it.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.clock import Clock
from jobpool_backends.shared import DeadCaps, delay_micros, micros, more_than
from jobpool_backends.sqlite import ending, removing
from jobpool_backends.sqlite.clock import Moment, read_moment
from jobpool_backends.sqlite.counts import Counts
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import DEAD, DELAYED, LEASED, NO_LEASE, WAITING

REAP_LIMIT = 1000
UNKNOWN_CAUSE = "lease expired"

_HELD = "SELECT seq FROM messages INDEXED BY messages_held WHERE queue = :queue AND state = 2"
_SOMETHING_TO_CLEAR = 0
"""Found beside the candidates: a number that no message has."""

_CLEAR = f"SELECT {_SOMETHING_TO_CLEAR} AS seq WHERE {ending.ANY_ENDED}"
# Leases of this boot by its own clock, in the order of their deadlines; those of another boot by the wall clock.
# Claimed messages have no boot, and are not among them.
_EXPIRED = f"""
{_CLEAR}
UNION ALL SELECT seq FROM ({_HELD} AND boot = :boot AND deadline <= :boottime ORDER BY deadline LIMIT {REAP_LIMIT})
UNION ALL SELECT seq FROM ({_HELD} AND boot < :boot AND deadline_wall <= :wall LIMIT {REAP_LIMIT})
UNION ALL SELECT seq FROM ({_HELD} AND boot > :boot AND deadline_wall <= :wall LIMIT {REAP_LIMIT})
LIMIT {REAP_LIMIT} + 1
"""
# A person's call, not the pool's: it walks over all leases of the queue.
_TAKEN_LONG_AGO = f"""
{_CLEAR}
UNION ALL
{_HELD} AND boot IS NOT NULL
    AND CASE WHEN boot = :boot THEN deadline <= :boottime OR deadline - ttl <= :boottime - :visibility
             ELSE deadline_wall <= :wall OR deadline_wall - ttl <= :wall - :visibility END
LIMIT {REAP_LIMIT} + 1
"""
_STILL = f"""
SELECT seq, id, crashes, last_crash, forfeited FROM messages
WHERE seq IN (SELECT value FROM json_each(:candidates)) AND state = 2 AND boot IS NOT NULL AND CASE
    WHEN boot = :boot THEN deadline <= :boottime OR deadline - ttl <= :boottime - :visibility
    ELSE deadline_wall <= :wall OR deadline_wall - ttl <= :wall - :visibility END
ORDER BY deadline, seq LIMIT {REAP_LIMIT}
"""
_RECOVER = f"""
UPDATE messages SET state = ?, available_at = ?, crashes = ?, last_crash = ?, cause = ?, {NO_LEASE} WHERE seq = ?
"""
_BURY = f"""
UPDATE messages SET state = 3, died_at = ?, reason = 'crash-limit', crashes = ?, last_crash = ?, cause = ?, {NO_LEASE}
WHERE seq = ?
"""
_LEAVE = "DELETE FROM holds WHERE seq IN (SELECT value FROM json_each(?))"
_NEVER_US = 2**61
"""Microseconds: longer ago than any lease was taken."""


class _Expired(NamedTuple):
    seq: int
    id: str
    crashes: int
    last_crash: int | None
    forfeited: str | None


class Reaper:
    """The reaper of one database's queues."""

    def __init__(self, database: Database, clock: Clock, boot: int, caps: DeadCaps) -> None:
        self._database = database
        self._clock = clock
        self._boot = boot
        self._caps = caps
        self._random = random.SystemRandom()

    def reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> tuple[list[Reaped], bool]:
        """Return the charged messages, and whether a waiter should look."""
        visibility = _NEVER_US if visibility_timeout is None else more_than(visibility_timeout)
        sql = _EXPIRED if visibility_timeout is None else _TAKEN_LONG_AGO
        with self._database.read() as connection:
            arguments = self._arguments(visibility) | {"queue": queue}
            candidates = [row[0] for row in connection.execute(sql, arguments)]
            over = bool(self._caps) and removing.is_over(connection, queue, self._caps, micros(self._clock.wall()))
        if not candidates and not over:
            return [], False
        with self._database.write() as connection:
            now = read_moment(self._clock, self._boot)
            arguments = self._arguments(visibility, now) | {"candidates": json.dumps(candidates)}
            expired = [_Expired._make(row) for row in connection.execute(_STILL, arguments)]
            reaped = self._charge(connection, queue, expired, policy, now.wall)
            frees_jobs = ending.clear_at_once(connection, queue, now, REAP_LIMIT - len(reaped))
            if self._caps:
                removing.evict(connection, [queue], self._caps, now.wall)
        return reaped, frees_jobs or not all(message.dead for message in reaped)

    def _arguments(self, visibility: int, now: Moment | None = None) -> dict[str, int | str]:
        now = now or read_moment(self._clock, self._boot)
        return {"boot": now.boot, "boottime": now.boottime, "wall": now.wall, "visibility": visibility}

    def _charge(
        self, connection: sqlite3.Connection, queue: str, expired: Sequence[_Expired], policy: ReapPolicy, now: int
    ) -> list[Reaped]:
        connection.execute(_LEAVE, (json.dumps([message.seq for message in expired]),))
        counts = Counts()
        reaped = []
        for message in expired:
            crashes = _count(message, policy, now)
            cause = message.forfeited or UNKNOWN_CAUSE
            dead = policy.is_over(crashes)
            if dead:
                connection.execute(_BURY, (now, crashes, now, cause, message.seq))
                counts.move(queue, LEASED, DEAD)
            else:
                delay = delay_micros(self._random.uniform(0.0, policy.ceiling(crashes)))
                state = DELAYED if delay else WAITING
                connection.execute(_RECOVER, (state, now + delay, crashes, now, cause, message.seq))
                counts.move(queue, LEASED, state)
            reaped.append(Reaped(message.id, queue, crashes, cause, dead))
        counts.write(connection)
        return reaped


def _count(message: _Expired, policy: ReapPolicy, now: int) -> int:
    """Return how many crashes this one makes: those before the window are forgotten."""
    long_ago = message.last_crash is not None and now - message.last_crash > micros(policy.window)
    return 1 if long_ago else message.crashes + 1
