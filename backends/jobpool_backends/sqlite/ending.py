"""Clearing of what has ended: claims, so that their messages are free again, and the lives of posted messages.

Both count as ended from the very moment on, so a call for a queue clears it first. It clears a bounded piece, and
without a write if there is nothing to clear. Empty claims wait apart to be dropped, so that they never stand before a
claim whose messages are to be freed.

The end of a claim is on the clock that decides about leases (see `moment`), that of a life on the wall clock.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from jobpool.broker.claim_store import MOST_MESSAGES
from jobpool_backends.sqlite import calls, removing
from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.counts import EXPIRED, POST_CLAIMED, Counts, counted_as
from jobpool_backends.sqlite.schema import LEASED, NO_LEASE, POSTED, WAITING

CLEAR_LIMIT = 1000
"""Messages freed, posts removed, and empty claims dropped, in one call."""


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
_ANY_ENDED = f"SELECT {ANY_ENDED}"
_SOME_CLAIMS = f"{_ended_claims(0)} LIMIT :most"
_SOME_POSTS = f"SELECT seq, queue, state, id, given, ends_at FROM {_ENDED_POSTS} ORDER BY ends_at LIMIT {CLEAR_LIMIT}"
_DROP = "DELETE FROM claims WHERE queue = ? AND id IN (SELECT value FROM json_each(?))"
_DROP_EMPTY = f"DELETE FROM claims WHERE queue = :queue AND id IN ({_ended_claims(1)} LIMIT {CLEAR_LIMIT})"
_FREE = f"""
UPDATE messages INDEXED BY messages_claimed
SET state = CASE handler WHEN '' THEN {POSTED} ELSE {WAITING} END, available_at = ?, claim = NULL, {NO_LEASE}
WHERE queue = ? AND claim IN (SELECT value FROM json_each(?))
RETURNING handler, ends_at
"""


class Freed(NamedTuple):
    """A message that is free again."""

    handler: str
    ends_at: int | None

    @property
    def is_job(self) -> bool:
        return bool(self.handler)

    def lives(self, now: Moment) -> bool:
        return self.ends_at is None or self.ends_at > now.wall


class EndedPost(NamedTuple):
    """A posted message whose life has ended."""

    seq: int
    queue: str
    state: int
    id: str
    given: int
    ends_at: int


def is_any(connection: sqlite3.Connection, queue: str, now: Moment) -> bool:
    """Return whether `clear` would find anything."""
    return bool(connection.execute(_ANY_ENDED, now.arguments(queue)).fetchone()[0])


def clear(connection: sqlite3.Connection, queue: str, now: Moment, counts: Counts, limit: int = CLEAR_LIMIT) -> bool:
    """Free what ended claims hold, up to `limit` messages, and remove ended posts; whether a job is free again."""
    if not is_any(connection, queue, now):
        return False
    asked = now.arguments(queue)
    frees_jobs, left = False, limit
    while left >= MOST_MESSAGES:
        claims = [row[0] for row in connection.execute(_SOME_CLAIMS, asked | {"most": left // MOST_MESSAGES})]
        if not claims:
            break
        freed = free(connection, queue, claims, counts, now)
        left -= max(len(freed), len(claims))
        frees_jobs = frees_jobs or any(message.is_job for message in freed)
    remove_posts(connection, [EndedPost._make(row) for row in connection.execute(_SOME_POSTS, asked)], counts)
    connection.execute(_DROP_EMPTY, asked)
    return frees_jobs


def clear_at_once(connection: sqlite3.Connection, queue: str, now: Moment, limit: int = CLEAR_LIMIT) -> bool:
    """Clear at once, with counts of its own."""
    counts = Counts()
    frees_jobs = clear(connection, queue, now, counts, limit)
    counts.write(connection)
    return frees_jobs


def free(connection: sqlite3.Connection, queue: str, claims: Sequence[str], counts: Counts, now: Moment) -> list[Freed]:
    """End these claims: what they hold goes to its old place."""
    ids = json.dumps(claims)
    freed = [Freed._make(row) for row in connection.execute(_FREE, (now.wall, queue, ids))]
    connection.execute(_DROP, (queue, ids))
    jobs = sum(message.is_job for message in freed)
    counts.move(queue, LEASED, WAITING, jobs)
    counts.move(queue, POST_CLAIMED, POSTED, len(freed) - jobs)
    return freed


def remove_posts(connection: sqlite3.Connection, ended: Sequence[EndedPost], counts: Counts) -> None:
    """Remove these; ids that were given are remembered from the end of the life on, whenever that is noticed."""
    if not ended:
        return
    removing.delete(connection, [post.seq for post in ended])
    for post in ended:
        counts.move(post.queue, counted_as(post.state, ""), EXPIRED)
        if post.given:
            calls.remember_ended(connection, [post.id], post.ends_at)
