"""Take back messages whose lease or claim has expired; an expired claim charges nothing. Ended posts are removed.

The candidates are read without the lock, so that a reaper that finds nothing disturbs nobody. The write transaction
then reads them again under the same condition, and charges those that still meet it.
"""

from __future__ import annotations

import json
import random
from typing import Any

from jobpool.broker.values import REAP_LIMIT, Reaped, ReapPolicy
from jobpool_backends.shared import DeadCaps, delay_micros, micros, more_than
from jobpool_backends.sqlite.batches import FAILED, end_members
from jobpool_backends.sqlite.claim_rows import ANY_ENDED, clear
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import DEAD, DELAYED, EACH, LEASED, NO_LEASE, WAITING, whole
from jobpool_backends.sqlite.step import Step, is_over

UNKNOWN_CAUSE = "lease expired"

_HELD = "SELECT seq FROM messages INDEXED BY messages_held WHERE queue = :queue AND state = 2"
_CLEAR = f"SELECT 0 AS seq WHERE {ANY_ENDED}"  # beside the candidates: a number that no message has
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
SELECT seq, id, {whole("crashes, last_crash")}, forfeited FROM messages
WHERE seq IN (SELECT value FROM json_each(:candidates)) AND state = 2 AND boot IS NOT NULL AND CASE
    WHEN boot = :boot THEN deadline <= :boottime OR deadline - ttl <= :boottime - :visibility
    ELSE deadline_wall <= :wall OR deadline_wall - ttl <= :wall - :visibility END
ORDER BY deadline, seq LIMIT {REAP_LIMIT}
"""
_RECOVER = f"""
UPDATE messages SET state = ?, available_at = ?, crashes = ?, last_crash = ?, cause = ?, {NO_LEASE} WHERE seq = ?
"""
_DIE = "state = 3, died_at = ?, reason = 'crash-limit', crashes = ?, last_crash = ?, cause = ?"
_BURY = f"UPDATE messages SET {_DIE}, {NO_LEASE} WHERE seq = ?"
_RELEASE_PLACES = f"DELETE FROM holds WHERE seq IN {EACH}"
_MAX_CRASHES = 2**32  # no pool runs a message with more, which another program has written
_NEVER_US = 2**61  # longer ago than any lease was taken


class Reaper:
    def __init__(self, database: Database, caps: DeadCaps) -> None:
        self._database = database
        self._caps = caps
        self._random = random.SystemRandom()

    def reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        visibility = {"visibility": _NEVER_US if visibility_timeout is None else more_than(visibility_timeout)}
        sql = _EXPIRED if visibility_timeout is None else _TAKEN_LONG_AGO
        with self._database.read() as connection:
            now = self._database.moment()
            candidates = [row[0] for row in connection.execute(sql, now.arguments(queue) | visibility)]
            over = bool(self._caps) and is_over(connection, queue, self._caps, now.wall)
        if not candidates and not over:
            return []
        with self._database.write() as step:
            arguments = step.now.arguments(queue) | visibility | {"candidates": json.dumps(candidates)}
            expired = step.execute(_STILL, arguments).fetchall()
            step.execute(_RELEASE_PLACES, (json.dumps([row[0] for row in expired]),))
            reaped = [self._charge(step, queue, policy, row) for row in expired]
            clear(step, queue, REAP_LIMIT - len(reaped))
            step.evict([queue], self._caps)
        return reaped

    def _charge(self, step: Step, queue: str, policy: ReapPolicy, row: tuple[Any, ...]) -> Reaped:
        seq, ident, crashes, last_crash, forfeited = row
        now, cause = step.now.wall, forfeited or UNKNOWN_CAUSE
        is_long_ago = last_crash is not None and now - last_crash > micros(policy.window)
        crashes = 1 if is_long_ago else min(max(0, crashes), _MAX_CRASHES) + 1
        dead = policy.is_over(crashes)
        if dead:
            end_members(step, [seq], FAILED)
            step.execute(_BURY, (now, crashes, now, cause, seq))
            step.counts.move(queue, LEASED, DEAD)
        else:
            delay = delay_micros(self._random.uniform(0.0, policy.ceiling(crashes)))
            state = DELAYED if delay else WAITING
            step.execute(_RECOVER, (state, now + delay, crashes, now, cause, seq))
            step.counts.move(queue, LEASED, state)
            step.frees_jobs = True
        return Reaped(ident, queue, crashes, cause, dead)
