"""Bulk changes by an administrator: delete messages, or retry or resume dead ones.

Messages are looked for without the lock, and changed in transactions of bounded size, in which the filter must hold
again. One that moved on meanwhile is left alone. Leased ones are never touched.
"""

from __future__ import annotations

import json

from jobpool.broker.values import MessageFilter, Verb
from jobpool_backends.sql import touchable
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.inspect import LIVING, Inspector, find
from jobpool_backends.sqlite.retention import delete, remember_ended
from jobpool_backends.sqlite.schema import DEAD, POSTED, WAITING

BULK_BATCH_MESSAGES = 500
_FREE = f"CASE handler WHEN '' THEN {POSTED} ELSE {WAITING} END"
_RETRY = f"""
UPDATE messages SET state = {_FREE}, available_at = ?, attempts = 0, crashes = 0, claims = 0,
    last_error = NULL, reason = NULL, cause = NULL, died_at = NULL, last_crash = NULL, begun = 1
WHERE seq IN (SELECT value FROM json_each(?))
"""
_RESUME = f"""
UPDATE messages SET state = {_FREE}, available_at = ?, reason = NULL, died_at = NULL, begun = 1
WHERE seq IN (SELECT value FROM json_each(?))
"""


class BulkChanges:
    """The bulk changes of one database."""

    def __init__(self, database: Database, inspector: Inspector) -> None:
        self._database = database
        self._inspector = inspector

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        wanted = touchable(where, verb)
        changed = first = 0
        while wanted and changed < limit:
            found = self._find(wanted, first, min(BULK_BATCH_MESSAGES, limit - changed))
            if not found:
                break
            changed += self._change(wanted, verb, found)
            first = found[-1]
        return changed

    def _find(self, where: MessageFilter, first: int, limit: int) -> list[int]:
        with self._database.read() as connection:
            wanted = self._inspector.search(connection, where, self._database.wall())
            return [row[0] for row in find(connection, wanted, "seq", first, limit)]

    def _change(self, where: MessageFilter, verb: Verb, found: list[int]) -> int:
        with self._database.write() as step:
            now = step.now.wall
            wanted = self._inspector.search(step.connection, where, now)
            sql = (
                "SELECT seq, queue, state, id, given, handler FROM messages"
                f" WHERE seq IN (SELECT value FROM json_each(:found)) AND {LIVING} AND {wanted.where}"
            )
            rows = step.connection.execute(sql, wanted.arguments | {"found": json.dumps(found)}).fetchall()
            numbers = [row[0] for row in rows]
            if verb is Verb.DELETE:
                delete(step.connection, numbers)
                remember_ended(step, [ident for _, _, _, ident, given, _ in rows if given])
            else:
                step.connection.execute(_RETRY if verb is Verb.RETRY else _RESUME, (now, json.dumps(numbers)))
            for _, queue, state, _, _, handler in rows:
                if verb is Verb.DELETE:
                    step.counts.remove(queue, state)
                else:
                    step.counts.move(queue, DEAD, WAITING if handler else POSTED)
        return len(rows)
