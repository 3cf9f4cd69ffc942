"""Claims as rows: reading them and what they hold, and clearing what has ended.

The end of a claim is on the clock that decides about leases (see `step`), that of a posted message's life on the wall
clock. Both count from the very moment on, so a call for a queue clears it first. It clears a bounded piece, and without
a write if there is nothing to clear. Empty claims wait apart to be dropped, so that they never stand before a claim
whose messages are to be freed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from jobpool.broker.claim_store import MOST_MESSAGES, ClaimStats, HeldClaim, QueueMessage
from jobpool_backends.shared import MICRO, body_or_oversized
from jobpool_backends.sql import read_queue_message
from jobpool_backends.sqlite.fetch import BODY
from jobpool_backends.sqlite.schema import EACH, LEASED, NO_LEASE, POSTED, STATS_CAP, WAITING, living
from jobpool_backends.sqlite.step import EXPIRED, POST_CLAIMED, ClockReading, Step, counted_as

CLEAR_LIMIT = 1000  # messages freed, posts removed, and empty claims dropped, in one call

LIVING = living(":wall")
_COLUMNS = "seq, id, {body}, handler, priority, enqueued_at, claims, ends_at, claim"
CLAIM_COLUMNS = _COLUMNS.replace("{body}", BODY)
LISTED = _COLUMNS.replace("{body}", "(SELECT body FROM bodies WHERE bodies.seq = messages.seq)")
"""`CLAIM_COLUMNS`, with bodies of any size."""

_IN_CLAIM = f"messages INDEXED BY messages_claimed WHERE queue = :queue AND claim = :claim AND {LIVING}"
_MESSAGES = f"SELECT {CLAIM_COLUMNS} FROM {_IN_CLAIM}"
_CLAIM = "SELECT id, ttl, grace, boot, deadline, deadline_wall FROM claims WHERE queue = ? AND id = ?"
_CLAIMS = f"""
SELECT id, ttl, grace, boot, deadline, deadline_wall,
    (SELECT count(*) FROM {_IN_CLAIM.replace(":claim", "claims.id")})
FROM claims WHERE queue = :queue AND id > :after
    AND CASE boot WHEN :boot THEN deadline > :boottime ELSE deadline_wall > :wall END
ORDER BY id LIMIT :limit
"""
_COUNTS = "SELECT waiting, delayed, leased, posts, posts_delayed, posts_claimed, expired FROM queues WHERE name = ?"
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


def _ended_claims(empty: int) -> str:
    """Return SQL for the ids of ended claims: of this boot by its own clock, of others by the wall clock.

    The boots are few, and found by one search each, so that no live claim is looked at.
    """
    of_queue = f"queue = :queue AND empty = {empty}"
    return f"""
    WITH RECURSIVE boots (name) AS (
        SELECT min(boot) FROM claims INDEXED BY claims_by_end WHERE {of_queue}
        UNION ALL
        SELECT (SELECT min(boot) FROM claims INDEXED BY claims_by_end WHERE {of_queue} AND boot > boots.name)
        FROM boots WHERE boots.name IS NOT NULL
    )
    SELECT id FROM claims INDEXED BY claims_by_end WHERE {of_queue} AND boot = :boot AND deadline <= :boottime
    UNION ALL
    SELECT id FROM boots CROSS JOIN claims INDEXED BY claims_by_end_wall
    ON {of_queue} AND boot = boots.name AND deadline_wall <= :wall WHERE boots.name <> :boot
    """


_ENDED_POSTS = "messages INDEXED BY messages_ending WHERE queue = :queue AND ends_at <= :wall"
ANY_ENDED = f"""
(EXISTS ({_ended_claims(0)}) OR EXISTS ({_ended_claims(1)}) OR EXISTS (SELECT 1 FROM {_ENDED_POSTS}))
"""
_SOME_CLAIMS = f"{_ended_claims(0)} LIMIT :most"
_SOME_POSTS = f"SELECT seq, queue, state, id, given, ends_at FROM {_ENDED_POSTS} ORDER BY ends_at LIMIT {CLEAR_LIMIT}"
_DROP = f"DELETE FROM claims WHERE queue = ? AND id IN {EACH}"
_DROP_EMPTY = f"DELETE FROM claims WHERE queue = :queue AND id IN ({_ended_claims(1)} LIMIT {CLEAR_LIMIT})"
_FREE = f"""
UPDATE messages INDEXED BY messages_claimed
SET state = CASE handler WHEN '' THEN {POSTED} ELSE {WAITING} END, available_at = ?, claim = NULL, {NO_LEASE}
WHERE queue = ? AND claim IN {EACH}
RETURNING handler, ends_at
"""

Row = tuple[Any, ...]


class Claim(NamedTuple):
    """A row of `claims`, live or not; times in microseconds."""

    id: str
    ttl: int
    grace: int
    boot: int
    deadline: int
    deadline_wall: int

    def lives(self, now: ClockReading) -> bool:
        return not now.is_past(self.boot, self.deadline, self.deadline_wall)

    def shown(self, queue: str, now: ClockReading, count: int = 0) -> HeldClaim:
        left = self.deadline - now.boottime if self.boot == now.boot else self.deadline_wall - now.wall
        age = max(0, self.ttl - left) // MICRO
        return HeldClaim(self.id, queue, self.ttl / MICRO, self.grace / MICRO, age, count=count)


class EndedPost(NamedTuple):
    seq: int
    queue: str
    state: int
    id: str
    given: int
    ends_at: int


def read(connection: sqlite3.Connection, queue: str, ident: str) -> Claim | None:
    row = connection.execute(_CLAIM, (queue, ident)).fetchone()
    return Claim._make(row) if row else None


def read_live(connection: sqlite3.Connection, queue: str, ident: str, now: ClockReading) -> Claim | None:
    claim = read(connection, queue, ident)
    return claim if claim and claim.lives(now) else None


def show(connection: sqlite3.Connection, queue: str, claim: Claim, now: ClockReading) -> HeldClaim:
    rows = connection.execute(_MESSAGES, {"queue": queue, "claim": claim.id, "wall": now.wall})
    return held(queue, claim, rows, now)


def held(queue: str, claim: Claim, rows: Iterable[Row], now: ClockReading) -> HeldClaim:
    """Return the claim with messages of which these are the `CLAIM_COLUMNS`, in the order of the queue."""
    messages = tuple(message(queue, row) for row in sorted(rows, key=itemgetter(4, 0)))
    return replace(claim.shown(queue, now, len(messages)), messages=messages)


def message(queue: str, row: Row) -> QueueMessage:
    return read_queue_message(queue, row[8], row, body_or_oversized(row[2]))


def page(connection: sqlite3.Connection, queue: str, after: str, limit: int, now: ClockReading) -> list[HeldClaim]:
    rows = connection.execute(_CLAIMS, {"after": after, "limit": limit, **now.arguments(queue)})
    return [Claim._make(row).shown(queue, now, count) for *row, count in rows]


def count(connection: sqlite3.Connection, queue: str, now: ClockReading) -> ClaimStats:
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


def is_any_ended(connection: sqlite3.Connection, queue: str, now: ClockReading) -> bool:
    return bool(connection.execute(f"SELECT {ANY_ENDED}", now.arguments(queue)).fetchone()[0])


def clear(step: Step, queue: str, limit: int = CLEAR_LIMIT) -> None:
    """Free what ended claims hold, up to `limit` messages, and remove ended posts."""
    if not is_any_ended(step.connection, queue, step.now):
        return
    asked = step.now.arguments(queue)
    while limit >= MOST_MESSAGES:
        claims = [row[0] for row in step.execute(_SOME_CLAIMS, asked | {"most": limit // MOST_MESSAGES})]
        if not claims:
            break
        limit -= max(len(free(step, queue, claims)), len(claims))
    remove_posts(step, [EndedPost._make(row) for row in step.execute(_SOME_POSTS, asked)])
    step.execute(_DROP_EMPTY, asked)


def free(step: Step, queue: str, claims: Sequence[str]) -> list[int | None]:
    """End these claims: their messages go to their old places. Return when the life of each message ends."""
    ids = json.dumps(claims)
    freed = step.execute(_FREE, (step.now.wall, queue, ids)).fetchall()
    step.execute(_DROP, (queue, ids))
    jobs = sum(bool(handler) for handler, _ in freed)
    step.counts.move(queue, LEASED, WAITING, jobs)
    step.counts.move(queue, POST_CLAIMED, POSTED, len(freed) - jobs)
    step.frees_jobs = step.frees_jobs or bool(jobs)
    return [ends_at for _, ends_at in freed]


def remove_posts(step: Step, ended: Sequence[EndedPost]) -> None:
    """Remove these; ids that were given are remembered from the end of the life on, whenever that is noticed."""
    step.delete([post.seq for post in ended])
    for post in ended:
        step.counts.move(post.queue, counted_as(post.state, ""), EXPIRED)
        if post.given:
            step.remember_ended([post.id], post.ends_at)
