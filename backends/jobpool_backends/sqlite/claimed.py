"""Claims and their messages as `ClaimStore` shows them. Reads only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from jobpool.broker.claim_store import ClaimStats, HeldClaim, QueueMessage
from jobpool_backends.shared import MICRO, stand_in
from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.fetch import BODY
from jobpool_backends.sqlite.filters import living
from jobpool_backends.sqlite.inspect import STATS_CAP

LIVING = living(":wall")

_COLUMNS = "seq, id, queue, {body}, handler, priority, enqueued_at, claims, claim, ends_at"
COLUMNS = _COLUMNS.replace("{body}", BODY)
LISTED = _COLUMNS.replace("{body}", "(SELECT body FROM bodies WHERE bodies.seq = messages.seq)")
"""`COLUMNS`, whatever the size of a body."""

_IN_CLAIM = f"messages INDEXED BY messages_claimed WHERE queue = :queue AND claim = :claim AND {LIVING}"
_MESSAGES = f"SELECT {COLUMNS} FROM {_IN_CLAIM} ORDER BY priority, seq"
_CLAIM = "SELECT id, ttl, grace, boot, deadline, deadline_wall FROM claims WHERE queue = ? AND id = ?"
_CLAIMS = f"""
SELECT id, ttl, grace, boot, deadline, deadline_wall,
    (SELECT count(*) FROM {_IN_CLAIM.replace(":claim", "claims.id")})
FROM claims WHERE queue = :queue AND id > :after
    AND CASE boot WHEN :boot THEN deadline > :boottime ELSE deadline_wall > :wall END
ORDER BY id LIMIT :limit
"""
_COUNTS = """
SELECT waiting, delayed, leased, posts, posts_delayed, posts_claimed, expired FROM queues WHERE name = ?
"""
_FALLEN_DUE = f"""
SELECT (SELECT count(*) FROM (SELECT 1 FROM messages INDEXED BY messages_due
                              WHERE queue = :queue AND state = 1 AND available_at <= :wall LIMIT {STATS_CAP}))
     + (SELECT count(*) FROM (SELECT 1 FROM messages INDEXED BY messages_posts_due
                              WHERE queue = :queue AND state = 5 AND available_at <= :wall LIMIT {STATS_CAP}))
"""
# Where more ended than one call clears.
_LEFT = f"""
SELECT count(state = 2 OR NULL), count(state = 4 OR state = 5 AND available_at <= :wall OR NULL),
    count(state = 5 AND available_at > :wall OR NULL)
FROM (SELECT state, available_at FROM messages INDEXED BY messages_ending
      WHERE queue = :queue AND ends_at <= :wall LIMIT {STATS_CAP})
"""


class Claim(NamedTuple):
    """A row of `claims`, whether it lives or not; times in microseconds."""

    id: str
    ttl: int
    grace: int
    boot: int
    deadline: int
    deadline_wall: int

    def lives(self, now: Moment) -> bool:
        return not now.is_past(self.boot, self.deadline, self.deadline_wall)

    def age(self, now: Moment) -> int:
        """Return whole seconds since it was made or renewed."""
        left = self.deadline - now.boottime if self.boot == now.boot else self.deadline_wall - now.wall
        return max(0, self.ttl - left) // MICRO


def read(connection: sqlite3.Connection, queue: str, ident: str) -> Claim | None:
    row = connection.execute(_CLAIM, (queue, ident)).fetchone()
    return Claim._make(row) if row else None


def read_live(connection: sqlite3.Connection, queue: str, ident: str, now: Moment) -> Claim | None:
    claim = read(connection, queue, ident)
    return claim if claim and claim.lives(now) else None


def show(connection: sqlite3.Connection, queue: str, claim: Claim, now: Moment) -> HeldClaim:
    """Return the claim with what is still in it."""
    rows = connection.execute(_MESSAGES, {"queue": queue, "claim": claim.id, "wall": now.wall})
    return held(queue, claim, rows, now)


def held(queue: str, claim: Claim, rows: Iterable[tuple[Any, ...]], now: Moment) -> HeldClaim:
    """Return the claim with messages of which these are the `COLUMNS`."""
    messages = tuple(map(message, rows))
    return replace(_bare(queue, claim, now), messages=messages, count=len(messages))


def _bare(queue: str, claim: Claim, now: Moment) -> HeldClaim:
    return HeldClaim(claim.id, queue, claim.ttl / MICRO, claim.grace / MICRO, claim.age(now))


def page(connection: sqlite3.Connection, queue: str, after: str, limit: int, now: Moment) -> list[HeldClaim]:
    """Return live claims by id, without their messages."""
    asked = {"after": after, "limit": limit, **now.arguments(queue)}
    rows = connection.execute(_CLAIMS, asked)
    return [replace(_bare(queue, Claim._make(row), now), count=count) for *row, count in rows]


def count(connection: sqlite3.Connection, queue: str, now: Moment) -> ClaimStats:
    """Count the messages of a queue. Due and ended ones are counted one by one, up to a cap; the rest is known."""
    row = connection.execute(_COUNTS, (queue,)).fetchone()
    if row is None:
        return ClaimStats()
    waiting, delayed, leased, posts, posts_delayed, posts_claimed, expired = row
    asked = {"queue": queue, "wall": now.wall}
    [due] = connection.execute(_FALLEN_DUE, asked).fetchone()
    left_claimed, left_free, left_delayed = connection.execute(_LEFT, asked).fetchone()
    return ClaimStats(
        claimed=leased + posts_claimed - left_claimed,
        free=waiting + posts + due - left_free,
        delayed=delayed + posts_delayed - due - left_delayed,
        expired=expired,
    )


def message(row: tuple[Any, ...]) -> QueueMessage:
    seq, ident, queue, body, handler, priority, enqueued_at, claims, claim, ends_at = row
    return QueueMessage(
        id=ident,
        queue=queue,
        body=stand_in(body),
        handler=handler,
        priority=priority,
        enqueued_at=enqueued_at / MICRO,
        claims=claims,
        claim=claim,
        ends_at=None if ends_at is None else ends_at / MICRO,
        cursor=str(seq),
    )
