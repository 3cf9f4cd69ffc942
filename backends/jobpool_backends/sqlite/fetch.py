"""Leasing: messages that have fallen due join the others, then the first ones in order get a holder and a deadline.

The order of a queue is that of an index, (priority, seq) over waiting messages only. A delayed message enters it when a
fetch finds it due. At most `PROMOTE_LIMIT` do so in one fetch, so that a million due at once do not hold the lock for
seconds. The order holds among those that have joined.
"""

from __future__ import annotations

import json
import secrets
from operator import itemgetter
from typing import Any

from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.lease import JobLease
from jobpool_backends.shared import MICRO, body_or_oversized, micros
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import DELAYED, EACH, LEASED, POST_DELAYED, POSTED, WAITING, whole
from jobpool_backends.sqlite.step import Step, Sweeper

PROMOTE_LIMIT = 5000

READY_OR_DUE = """
EXISTS (SELECT 1 FROM messages INDEXED BY messages_ready WHERE queue = :queue AND state = 0)
    OR EXISTS (SELECT 1 FROM messages INDEXED BY messages_due
               WHERE queue = :queue AND state = 1 AND available_at <= :wall)
"""
_WORTH_A_TRANSACTION = f"SELECT {READY_OR_DUE} OR EXISTS (SELECT 1 FROM calls WHERE id = :call)"
_PROMOTE = """
UPDATE messages SET state = {after} WHERE seq IN (
    SELECT seq FROM messages INDEXED BY {index}
    WHERE queue = ? AND state = {before} AND available_at <= ? ORDER BY available_at LIMIT {limit}
)
"""
_PROMOTIONS = {
    DELAYED: _PROMOTE.format(before=DELAYED, after=WAITING, index="messages_due", limit=PROMOTE_LIMIT),
    POST_DELAYED: _PROMOTE.format(before=POST_DELAYED, after=POSTED, index="messages_posts_due", limit=PROMOTE_LIMIT),
}
BODY = f"""
(SELECT CASE WHEN typeof(body) <> 'blob' THEN x'' WHEN length(body) > {MAX_BODY_BYTES} THEN length(body) ELSE body END
 FROM bodies WHERE bodies.seq = messages.seq)
"""
"""A message's body, for `body_or_oversized`. The length of a blob is known without reading it; text was never ours."""

_COLUMNS = f"seq, priority, id, {BODY}, {whole('attempts, crashes, deliveries, enqueued_at')}, begun, deadline"
_TAKE = f"""
UPDATE messages
SET state = 2, holder = ?, boot = ?, deadline = ?, deadline_wall = ?, ttl = ?, deliveries = deliveries + 1
WHERE seq IN (
    SELECT seq FROM messages INDEXED BY messages_ready WHERE queue = ? AND state = 0 ORDER BY priority, seq LIMIT ?
)
RETURNING {_COLUMNS}
"""
_HELD = "state = 2 AND holder = ? AND boot = ? AND deadline > ?"
_STILL_HELD = f"SELECT {_COLUMNS} FROM messages WHERE seq IN {EACH} AND {_HELD}"


class Fetcher:
    def __init__(self, database: Database, sweeper: Sweeper, scheme: str) -> None:
        self._database = database
        self._sweeper = sweeper
        self._scheme = scheme
        self._flowing: set[str] = set()
        """Queues to fetch from without a look first: the last fetch brought all it asked for, or a wait saw a job."""

    def expect(self, queue: str) -> None:
        """Note that the queue has something now."""
        self._flowing.add(queue)

    def fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        call = f"fetch:{queue}:{fetch_id}"
        before = self._database.clock.boot()
        if queue not in self._flowing and not self._has_work(queue, call):
            return []
        with self._database.write() as step:
            known = step.recall(call)
            if known is not None:
                holder, _, sequence = known.partition(" ")
                asked = (sequence, holder, step.now.boot, step.now.boottime)
                return self._leases(queue, holder, step.execute(_STILL_HELD, asked).fetchall(), None)
            promote(step, queue, DELAYED, WAITING)
            holder, now, length = secrets.token_hex(8), step.now, micros(ttl)
            taking = (holder, now.boot, now.boottime + length, now.wall + length, length, queue, limit)
            rows = step.execute(_TAKE, taking).fetchall()
            step.counts.move(queue, WAITING, LEASED, len(rows))
            if rows:
                step.remember(call, f"{holder} {json.dumps([row[0] for row in rows])}")
                self._sweeper.sweep(step)
        (self._flowing.add if len(rows) == limit else self._flowing.discard)(queue)
        return self._leases(queue, holder, rows, before + ttl)

    def _has_work(self, queue: str, call: str) -> bool:
        """Look without the lock if there is work: an empty queue costs no transaction."""
        arguments = {"queue": queue, "wall": self._database.wall(), "call": call}
        with self._database.session() as connection:
            return bool(self._database.first(connection, _WORTH_A_TRANSACTION, arguments)[0])

    def _leases(self, queue: str, holder: str, rows: list[tuple[Any, ...]], expires_at: float | None) -> list[JobLease]:
        rows.sort(key=itemgetter(1, 0))  # by priority and seq: RETURNING promises no order
        scheme = self._scheme
        return [
            JobLease(
                ident,
                queue,
                body if type(body) is bytes else body_or_oversized(body),
                seq,
                owner_token(holder, seq),
                deadline / MICRO if expires_at is None else expires_at,
                scheme,
                attempts,
                crashes,
                deliveries,
                enqueued_at / MICRO,
                bool(begun),
            )
            for seq, _, ident, body, attempts, crashes, deliveries, enqueued_at, begun, deadline in rows
        ]


def promote(step: Step, queue: str, before: int, after: int) -> None:
    """Let due jobs, or posts, join the others."""
    step.counts.move(queue, before, after, step.execute(_PROMOTIONS[before], (queue, step.now.wall)).rowcount)


def owner_token(holder: str, seq: int) -> str:
    """Return 32 hex characters: one random half for each fetch, and the message's number, so that no two are alike."""
    return f"{holder}{seq:016x}"
