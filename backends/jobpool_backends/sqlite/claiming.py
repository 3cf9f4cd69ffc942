"""Claims: taking what is free, and holding it longer; each within a write transaction.

Free jobs and free posts have an index each, in the order of the queue. A claim walks along both at once, merges them,
and stops when it has enough: what else is in the queue costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from jobpool.broker.claim_store import CLAIM_LIMIT, MOST_LIFE, HeldClaim
from jobpool_backends.shared import DeadCaps, micros
from jobpool_backends.sqlite import claimed, removing
from jobpool_backends.sqlite.claimed import COLUMNS, LIVING, Claim
from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.counts import counted_as
from jobpool_backends.sqlite.fetch import PROMOTE_LIMIT, promote
from jobpool_backends.sqlite.schema import DEAD, LEASED, POST_DELAYED, POSTED, WAITING
from jobpool_backends.sqlite.step import Step

BURY_LIMIT = 1000
"""Messages that one call makes dead letters because they were claimed too often."""

_FURTHER_MESSAGES = 200
"""Messages looked at in each step after the first."""

_BEFORE_ALL = (-(2**63), 0)

_PROMOTE = f"""
UPDATE messages SET state = 4 WHERE seq IN (
    SELECT seq FROM messages INDEXED BY messages_posts_due
    WHERE queue = ? AND state = 5 AND available_at <= ? ORDER BY available_at LIMIT {PROMOTE_LIMIT}
)
"""
_BEHIND = "queue = :queue AND (priority, seq) > (:priority, :seq)"
_LOOK = f"""
SELECT priority, seq, claims, handler FROM messages INDEXED BY messages_ready WHERE state = 0 AND {_BEHIND}
UNION ALL
SELECT priority, seq, claims, handler FROM messages INDEXED BY messages_posts WHERE state = 4 AND {_BEHIND} AND {LIVING}
ORDER BY priority, seq LIMIT :limit
"""
# The end is the claim's, in its row; here it is shown. Without a boot no reap of leases comes by.
_LEASE = "deadline_wall = :deadline_wall, ends_at = CASE WHEN ends_at IS NOT NULL THEN max(ends_at, :life) END"
_TAKE = f"""
UPDATE messages
SET state = 2, holder = :claim, claim = :claim, deliveries = deliveries + 1, claims = claims + 1, {_LEASE}
WHERE seq IN (SELECT value FROM json_each(:numbers)) RETURNING {COLUMNS}
"""
_BURY = f"""
UPDATE messages SET state = 3, reason = '{CLAIM_LIMIT}', died_at = ?, ends_at = NULL
WHERE seq IN (SELECT value FROM json_each(?))
"""
_KEEP = """
INSERT INTO claims (queue, id, ttl, grace, empty, boot, deadline, deadline_wall)
VALUES (:queue, :claim, :ttl, :grace, 0, :boot, :deadline, :deadline_wall)
"""
_KEEP_LONGER = """
UPDATE claims SET ttl = :ttl, grace = :grace, boot = :boot, deadline = :deadline, deadline_wall = :deadline_wall
WHERE queue = :queue AND id = :claim
"""
_HOLD_LONGER = f"""
UPDATE messages INDEXED BY messages_claimed SET {_LEASE}
WHERE queue = :queue AND claim = :claim AND {LIVING} RETURNING {COLUMNS}
"""


class Free(NamedTuple):
    """A message that may be claimed."""

    priority: int
    seq: int
    claims: int
    handler: str

    @property
    def state(self) -> int:
        return WAITING if self.handler else POSTED


def begin(ident: str, ttl: float, grace: float, now: Moment) -> Claim:
    """Return a claim that is made, or renewed, now."""
    length = micros(ttl)
    return Claim(ident, length, micros(grace), now.boot, now.boottime + length, now.wall + length)


def take(step: Step, claim: Claim, limit: int, max_claims: int, caps: DeadCaps) -> HeldClaim | None:
    """Make this claim of what is free; None when nothing is."""
    promote_all(step)
    taken, over = _choose(step, limit, max_claims)
    _bury(step, over, caps)
    if not taken:
        return None
    terms = _terms(step, claim)
    rows = step.connection.execute(_TAKE, terms | {"numbers": numbers(taken)}).fetchall()
    step.connection.execute(_KEEP, terms)
    for message in taken:
        step.counts.move(step.queue, message.state, counted_as(LEASED, message.handler))
    return claimed.held(step.queue, claim, in_order(rows), step.now)


def prolong(step: Step, claim: Claim) -> HeldClaim:
    """Give a live claim these new terms."""
    terms = _terms(step, claim)
    step.connection.execute(_KEEP_LONGER, terms)
    rows = step.connection.execute(_HOLD_LONGER, terms).fetchall()
    return claimed.held(step.queue, claim, in_order(rows), step.now)


def promote_all(step: Step) -> None:
    """Let due messages, jobs and posts, join the others."""
    promote(step.connection, step.queue, step.now.wall, step.counts)
    due = step.connection.execute(_PROMOTE, (step.queue, step.now.wall)).rowcount
    step.counts.move(step.queue, POST_DELAYED, POSTED, due)


def look(step: Step, limit: int, behind: tuple[int, int] = _BEFORE_ALL) -> list[Free]:
    """Return the first free messages after this place in the queue."""
    priority, seq = behind
    asked = {"queue": step.queue, "wall": step.now.wall, "priority": priority, "seq": seq, "limit": limit}
    return [Free._make(row) for row in step.connection.execute(_LOOK, asked)]


def numbers(messages: Iterable[Free]) -> str:
    return json.dumps([message.seq for message in messages])


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows of `COLUMNS` in the order of the queue: RETURNING promises none."""
    return sorted(rows, key=lambda row: (row[5], row[0]))


def _choose(step: Step, limit: int, max_claims: int) -> tuple[list[Free], list[Free]]:
    """Return the first that may be taken, and those before them that were claimed too often."""
    taken: list[Free] = []
    over: list[Free] = []
    behind, size = _BEFORE_ALL, limit
    while True:
        found = look(step, size, behind)
        for message in found:
            is_over = 0 < max_claims <= message.claims
            if is_over and len(over) == BURY_LIMIT:
                return taken, over
            (over if is_over else taken).append(message)
            if len(taken) == limit:
                return taken, over
        if len(found) < size:
            return taken, over
        behind, size = (found[-1].priority, found[-1].seq), _FURTHER_MESSAGES


def _bury(step: Step, over: list[Free], caps: DeadCaps) -> None:
    if not over:
        return
    step.connection.execute(_BURY, (step.now.wall, numbers(over)))
    for message in over:
        step.counts.move(step.queue, message.state, DEAD)
    if caps:
        step.counts.write(step.connection)
        removing.evict(step.connection, [step.queue], caps, step.now.wall)


def _terms(step: Step, claim: Claim) -> dict[str, int | str]:
    """Return the claim as the statements want it, and until when the messages in it live at least."""
    life = min(claim.deadline_wall + claim.grace, step.now.wall + micros(MOST_LIFE))
    return {
        "queue": step.queue,
        "claim": claim.id,
        "ttl": claim.ttl,
        "grace": claim.grace,
        "boot": claim.boot,
        "deadline": claim.deadline,
        "deadline_wall": claim.deadline_wall,
        "life": life,
        "wall": step.now.wall,
    }
