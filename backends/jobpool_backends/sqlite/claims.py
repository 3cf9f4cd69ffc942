"""The claim store: taking free messages, holding them longer, deleting them.

Free jobs and free posts have an index each, in the order of the queue. A claim walks along both at once, merges them,
and stops when it has enough: the rest of the queue costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from jobpool.broker.claim_store import (
    CLAIM_LIMIT,
    MOST_LIFE,
    ClaimStats,
    ClaimStore,
    Deleted,
    HeldClaim,
    NewPost,
    QueueMessage,
)
from jobpool.broker.values import MessageFilter, State
from jobpool_backends.shared import DeadCaps, micros
from jobpool_backends.sqlite import batches, claim_rows
from jobpool_backends.sqlite.claim_rows import CLAIM_COLUMNS, LIVING, Claim, read_live
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.enqueue import post
from jobpool_backends.sqlite.fetch import READY_OR_DUE, promote
from jobpool_backends.sqlite.inspect import search_for
from jobpool_backends.sqlite.schema import DEAD, DELAYED, EACH, LEASED, POST_DELAYED, POSTED, WAITING
from jobpool_backends.sqlite.step import ClockReading, Step, Sweeper, counted_as

BURY_LIMIT = 1000  # messages that one call makes dead letters because they were claimed too often
_FURTHER_MESSAGES = 200  # looked at in each step after the first

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
WHERE seq IN (SELECT value FROM json_each(:numbers)) RETURNING {CLAIM_COLUMNS}
"""
_BURY = f"UPDATE messages SET state = 3, reason = '{CLAIM_LIMIT}', died_at = ?, ends_at = NULL WHERE seq IN {EACH}"
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
WHERE queue = :queue AND claim = :claim AND {LIVING} RETURNING {CLAIM_COLUMNS}
"""
_FACTS = "id, seq, state, handler, given, claim, batch"
_NAMED = f"""
SELECT {_FACTS} FROM messages INDEXED BY messages_by_id
WHERE id IN (SELECT value FROM json_each(:ids)) AND queue = :queue AND state <> 3 AND {LIVING}
"""
_NUMBERED = f"SELECT {_FACTS}, {CLAIM_COLUMNS} FROM messages WHERE seq IN {EACH} ORDER BY priority, seq"
_MARK_EMPTY = """
UPDATE claims SET empty = 1 WHERE queue = :queue AND id = :claim AND NOT EXISTS (
    SELECT 1 FROM messages INDEXED BY messages_claimed WHERE queue = :queue AND claim = :claim
)
"""
_WORTH_A_TRANSACTION = f"""
SELECT {READY_OR_DUE}
    OR EXISTS (SELECT 1 FROM messages INDEXED BY messages_posts WHERE queue = :queue AND state = 4)
    OR EXISTS (SELECT 1 FROM messages INDEXED BY messages_posts_due
               WHERE queue = :queue AND state = 5 AND available_at <= :wall)
    OR EXISTS (SELECT 1 FROM claims WHERE queue = :queue AND id = :claim)
    OR {claim_rows.ANY_ENDED}
"""
_FREE, _FREE_OR_HELD = (State.WAITING,), (State.WAITING, State.LEASED)


class SqliteClaims(ClaimStore):
    """The claims of one database; the calls that would meet ended ones clear them."""

    def __init__(self, database: Database, sweeper: Sweeper, caps: DeadCaps) -> None:
        self._database = database
        self._sweeper = sweeper
        self._caps = caps

    @contextmanager
    def _write(self) -> Iterator[Step]:
        with self._database.write() as step:
            yield step
            self._sweeper.sweep(step)

    @contextmanager
    def _write_cleared(self, queue: str) -> Iterator[Step]:
        with self._write() as step:
            claim_rows.clear(step, queue)
            yield step

    @contextmanager
    def _read_cleared(self, queue: str) -> Iterator[Step]:
        """Yield a read transaction; if something has ended, a write transaction that has cleared it."""
        with self._database.read() as connection:
            step = Step(connection, self._database.moment())
            if not claim_rows.is_any_ended(connection, queue, step.now):
                yield step
                return
        with self._write_cleared(queue) as step:
            step.counts.write(step.connection)
            yield step

    def _has_work(self, queue: str, claim_id: str = "") -> bool:
        """Look without the lock if there is work: an empty queue costs no write transaction."""
        with self._database.read() as connection:
            asked = self._database.moment().arguments(queue) | {"claim": claim_id}
            return bool(connection.execute(_WORTH_A_TRANSACTION, asked).fetchone()[0])

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        with self._write() as step:
            post(step, queue, posts)

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        with self._write() as step:
            if claim_id is not None and not read_live(step.connection, queue, claim_id, step.now):
                return None
            asked = {"ids": json.dumps(idents), "queue": queue, "wall": step.now.wall}
            there = [_Fact._make(row) for row in step.execute(_NAMED, asked)]
            kept = {fact.id for fact in there if not _may_go(step, queue, fact, claim_id)}
            _remove(step, queue, [fact for fact in there if fact.id not in kept])
            if claim_id is not None:
                step.execute(_MARK_EMPTY, {"queue": queue, "claim": claim_id})
        return [Deleted.FORBIDDEN if ident in kept else Deleted.DONE for ident in idents]

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        if not self._has_work(queue):
            return []
        with self._write_cleared(queue) as step:
            _promote_all(step, queue)
            found = _numbers(islice(_free(step, queue, limit), limit))
            rows = step.execute(_NUMBERED, (found,)).fetchall()
            _remove(step, queue, [_Fact._make(row[:_WIDTH]) for row in rows])
        return [claim_rows.message(queue, row[_WIDTH:]) for row in rows]

    def _list(self, queue: str, after: int, limit: int, with_held: bool) -> list[QueueMessage]:
        with self._read_cleared(queue) as step:
            where = MessageFilter(queue=queue, states=_FREE_OR_HELD if with_held else _FREE)
            wanted = search_for(step.connection, where, step.now.wall)
            rows = wanted.find(step.connection, claim_rows.LISTED, after, limit)
        return [claim_rows.message(queue, row) for row in rows]

    def _stats(self, queue: str) -> ClaimStats:
        with self._read_cleared(queue) as step:
            return claim_rows.count(step.connection, queue, step.now)

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        if not self._has_work(queue, claim_id):
            return None
        with self._write_cleared(queue) as step:
            known = claim_rows.read(step.connection, queue, claim_id)
            if known and known.lives(step.now):
                return claim_rows.show(step.connection, queue, known, step.now)
            if known:  # ended, and not cleared, because there was so much
                claim_rows.free(step, queue, [claim_id])
            return self._take(step, queue, _begin(claim_id, ttl, micros(grace), step.now), limit, max_claims)

    def _take(self, step: Step, queue: str, claim: Claim, limit: int, max_claims: int) -> HeldClaim | None:
        """Make this claim of what is free; None when nothing is."""
        _promote_all(step, queue)
        taken, over = _choose(step, queue, limit, max_claims)
        if over:
            batches.end_members(step, [message.seq for message in over], batches.FAILED)
            step.execute(_BURY, (step.now.wall, _numbers(over)))
            for message in over:
                step.counts.move(queue, message.state, DEAD)
            step.evict([queue], self._caps)
        if not taken:
            return None
        terms = _terms(queue, claim, step.now)
        rows = step.execute(_TAKE, terms | {"numbers": _numbers(taken)}).fetchall()
        step.execute(_KEEP, terms)
        for message in taken:
            step.counts.move(queue, message.state, counted_as(LEASED, message.handler))
        return claim_rows.held(queue, claim, rows, step.now)

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        with self._database.read() as connection:
            now = self._database.moment()
            claim = read_live(connection, queue, claim_id, now)
            return claim_rows.show(connection, queue, claim, now) if claim else None

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        with self._write() as step:
            old = read_live(step.connection, queue, claim_id, step.now)
            if old is None:
                return None
            claim = _begin(claim_id, ttl, old.grace if grace is None else micros(grace), step.now)
            terms = _terms(queue, claim, step.now)
            step.execute(_KEEP_LONGER, terms)
            rows = step.execute(_HOLD_LONGER, terms).fetchall()
            return claim_rows.held(queue, claim, rows, step.now)

    def _release(self, queue: str, claim_id: str) -> int:
        with self._write() as step:
            if not read_live(step.connection, queue, claim_id, step.now):
                return 0
            ends = claim_rows.free(step, queue, [claim_id])
            return sum(ends_at is None or ends_at > step.now.wall for ends_at in ends)

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        with self._read_cleared(queue) as step:
            return claim_rows.page(step.connection, queue, after, limit, step.now)


class _Free(NamedTuple):
    priority: int
    seq: int
    claims: int
    handler: str

    @property
    def state(self) -> int:
        return WAITING if self.handler else POSTED


def _begin(ident: str, ttl: float, grace: int, now: ClockReading) -> Claim:
    length = micros(ttl)
    return Claim(ident, length, grace, now.boot, now.boottime + length, now.wall + length)


def _promote_all(step: Step, queue: str) -> None:
    promote(step, queue, DELAYED, WAITING)
    promote(step, queue, POST_DELAYED, POSTED)


def _free(step: Step, queue: str, size: int) -> Iterator[_Free]:
    """Yield the free messages in order, read piece by piece; `size`: of the first."""
    priority, seq = -(2**63), 0
    while True:
        asked = {"queue": queue, "wall": step.now.wall, "priority": priority, "seq": seq, "limit": size}
        found = [_Free._make(row) for row in step.execute(_LOOK, asked)]
        yield from found
        if len(found) < size:
            return
        priority, seq, size = found[-1].priority, found[-1].seq, _FURTHER_MESSAGES


def _choose(step: Step, queue: str, limit: int, max_claims: int) -> tuple[list[_Free], list[_Free]]:
    """Return the first that may be taken, and those before them that were claimed too often."""
    taken: list[_Free] = []
    over: list[_Free] = []
    for message in _free(step, queue, limit):
        is_over = 0 < max_claims <= message.claims
        if is_over and len(over) == BURY_LIMIT:
            break
        (over if is_over else taken).append(message)
        if len(taken) == limit:
            break
    return taken, over


def _terms(queue: str, claim: Claim, now: ClockReading) -> dict[str, Any]:
    """Return the claim as the statements want it, and until when the messages in it live at least."""
    life = min(claim.deadline_wall + claim.grace, now.wall + micros(MOST_LIFE))
    return {**claim._asdict(), "claim": claim.id, "queue": queue, "life": life, "wall": now.wall}


def _numbers(messages: Iterable[_Free]) -> str:
    return json.dumps([message.seq for message in messages])


class _Fact(NamedTuple):
    id: str
    seq: int
    state: int
    handler: str
    given: int
    claim: str | None
    batch: str | None


_WIDTH = len(_Fact._fields)


def _may_go(step: Step, queue: str, fact: _Fact, claim_id: str | None) -> bool:
    """Return whether the holder of this live claim, or of none, may delete it."""
    if claim_id is not None:
        return fact.claim == claim_id
    if fact.state != LEASED:
        return True
    return fact.claim is not None and not read_live(step.connection, queue, fact.claim, step.now)


def _remove(step: Step, queue: str, gone: list[_Fact]) -> None:
    step.delete([fact.seq for fact in gone], [fact.id for fact in gone if fact.given])
    for fact in gone:
        if fact.batch is not None:
            batches.end(step, fact.batch, fact.id, batches.CANCELLED)
        step.counts.add(queue, counted_as(fact.state, fact.handler), -1)
