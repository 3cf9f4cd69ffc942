"""The administrator's view: counts, lists, single messages. Reads only, and never waits for a writer."""

from __future__ import annotations

import sqlite3
from typing import Any

from jobpool.broker.values import Message, MessageFilter, QueueStats, State
from jobpool.clock import Clock
from jobpool_backends.shared import MICRO, check_page, check_positive, micros, read_cursor
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.filters import LIVING, Search, search
from jobpool_backends.sqlite.schema import DEAD, DELAYED, LEASED, POST_DELAYED, POSTED, WAITING

STATS_CAP = 10_000
"""Limit of delayed messages counted one by one that fell due while nobody fetched."""

_COUNTS = "SELECT waiting, delayed, leased, dead, posts + posts_delayed + posts_claimed FROM queues WHERE name = ?"
_EVICTED = "SELECT evicted FROM queues WHERE name = ?"
_FALLEN_DUE = f"""
SELECT count(*), min(seq) FROM (
    SELECT seq FROM messages INDEXED BY messages_due
    WHERE queue = ? AND state = 1 AND available_at <= ? LIMIT {STATS_CAP}
)
"""
_FIRST_WAITING = "SELECT min(seq) FROM messages INDEXED BY messages_listed WHERE queue = ? AND state = 0"
_ENQUEUED_AT = "SELECT enqueued_at FROM messages WHERE seq = ?"
_QUEUES = "SELECT name FROM queues ORDER BY name"
_ENDING = "SELECT 1 FROM messages INDEXED BY messages_ending WHERE queue = name AND ends_at"
# A queue that holds only posts is busy when one of them lives: look for one that ends later, or count those that ended.
_BUSY_QUEUES = f"""
SELECT name FROM queues WHERE waiting + delayed + leased + dead > 0 OR CASE
    WHEN posts + posts_delayed + posts_claimed = 0 THEN 0
    WHEN EXISTS ({_ENDING} > :now) THEN 1
    ELSE posts + posts_delayed + posts_claimed > (SELECT count(*) FROM ({_ENDING} <= :now)) END
ORDER BY name
"""
_ENDED = f"""
SELECT count(*) FROM (SELECT 1 FROM messages INDEXED BY messages_ending WHERE queue = ? AND ends_at <= ?
                      LIMIT {STATS_CAP})
"""
_COLUMNS = """
seq, id, queue, state, handler, priority, attempts, crashes, deliveries, enqueued_at, available_at,
(SELECT body FROM bodies WHERE bodies.seq = messages.seq), reason, last_error, coalesce(nullif(forfeited, ''), cause),
died_at, deadline_wall, claim, claims, ends_at
"""
_INSPECT = f"SELECT {_COLUMNS} FROM messages WHERE id = :id AND {LIVING}"
_STATES = {
    WAITING: State.WAITING,
    DELAYED: State.DELAYED,
    LEASED: State.LEASED,
    DEAD: State.DEAD,
    POSTED: State.WAITING,
    POST_DELAYED: State.DELAYED,
}


class Inspector:
    """The view of one database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def stats(self, queue: str) -> QueueStats:
        with self._database.read() as connection:
            row = connection.execute(_COUNTS, (queue,)).fetchone()
            if row is None:
                return QueueStats()
            now = micros(self._clock.wall())
            due, first_due = connection.execute(_FALLEN_DUE, (queue, now)).fetchone()
            oldest = _oldest(connection, queue, first_due)
            waiting, delayed, leased, dead, posted = row
            ended = connection.execute(_ENDED, (queue, now)).fetchone()[0] if posted else 0
        return QueueStats(
            waiting=waiting + due,
            delayed=delayed - due,
            leased=leased,
            dead=dead,
            oldest=max(0, now - oldest) / MICRO if oldest is not None else None,
            cap=waiting + due if due == STATS_CAP else None,
            posted=posted - ended,
        )

    def evicted(self, queue: str) -> int:
        with self._database.read() as connection:
            row = connection.execute(_EVICTED, (queue,)).fetchone()
        return row[0] if row else 0

    def queues(self) -> list[str]:
        with self._database.read() as connection:
            return [name for (name,) in connection.execute(_BUSY_QUEUES, {"now": micros(self._clock.wall())})]

    def page(self, where: MessageFilter, after: str | None, limit: int) -> list[Message]:
        first = read_cursor(after)
        check_page(limit)
        with self._database.read() as connection:
            now = micros(self._clock.wall())
            rows = find(connection, self.search(connection, where, now), _COLUMNS, first, limit)
        return [_message(row, now) for row in rows]

    def count(self, where: MessageFilter, cap: int) -> int:
        check_positive(cap, "cap")
        with self._database.read() as connection:
            wanted = self.search(connection, where, micros(self._clock.wall()))
            found = 0
            for source in wanted.ranges:
                sql = f"SELECT count(*) FROM (SELECT 1 FROM {source} {wanted.where} LIMIT :left)"
                found += connection.execute(sql, wanted.arguments | {"left": cap - found}).fetchone()[0]
        return found

    def inspect(self, ident: str) -> Message | None:
        with self._database.read() as connection:
            now = micros(self._clock.wall())
            row = connection.execute(_INSPECT, {"id": ident, "now": now}).fetchone()
        return _message(row, now) if row else None

    def search(self, connection: sqlite3.Connection, where: MessageFilter, now: int) -> Search:
        queues = [name for (name,) in connection.execute(_QUEUES)] if where.queue is None else []
        return search(where, queues, now)


def find(connection: sqlite3.Connection, wanted: Search, columns: str, first: int, limit: int) -> list[tuple[Any, ...]]:
    """Return the first `limit` messages after sequence number `first`; `columns` begin with seq."""
    arguments = wanted.arguments | {"first": first, "limit": limit}
    rows: list[tuple[Any, ...]] = []
    for source in wanted.ranges:
        sql = f"SELECT {columns} FROM {source} {wanted.where} AND seq > :first ORDER BY seq LIMIT :limit"
        rows += connection.execute(sql, arguments).fetchall()
    rows.sort(key=lambda row: row[0])
    return rows[:limit]


def _oldest(connection: sqlite3.Connection, queue: str, first_due: int | None) -> int | None:
    """Return when the waiting message that was enqueued first was enqueued."""
    (first,) = connection.execute(_FIRST_WAITING, (queue,)).fetchone()
    candidates = [seq for seq in (first, first_due) if seq is not None]
    if not candidates:
        return None
    enqueued_at: int = connection.execute(_ENQUEUED_AT, (min(candidates),)).fetchone()[0]
    return enqueued_at


def _message(row: tuple[Any, ...], now: int) -> Message:
    (seq, ident, queue, stored, handler, priority, attempts, crashes, deliveries) = row[:9]
    (enqueued_at, available_at, body, reason, last_error, cause, died_at, deadline_wall) = row[9:17]
    claim, claims, ends_at = row[17:]
    state = _STATES[stored]
    return Message(
        id=ident,
        queue=queue,
        state=State.WAITING if state is State.DELAYED and available_at <= now else state,
        handler=handler,
        priority=priority,
        attempts=attempts,
        crashes=crashes,
        deliveries=deliveries,
        enqueued_at=enqueued_at / MICRO,
        available_at=available_at / MICRO,
        body=body,
        reason=reason,
        last_error=last_error,
        cause=cause,
        died_at=None if died_at is None else died_at / MICRO,
        expires_at=None if deadline_wall is None else deadline_wall / MICRO,
        claim=claim if claim is not None and now < deadline_wall else None,
        claims=claims,
        ends_at=None if ends_at is None else ends_at / MICRO,
        cursor=str(seq),
    )
