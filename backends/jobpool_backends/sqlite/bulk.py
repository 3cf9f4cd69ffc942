"""Bulk changes by an administrator: delete messages, or retry or resume dead ones.

Messages are looked for without the lock, and changed in transactions of bounded size, in which the filter must hold
again. One that moved on meanwhile is left alone. Leased ones are never touched.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

from jobpool.broker.values import MessageFilter, Verb
from jobpool.clock import Clock
from jobpool_backends.shared import TOUCHABLE, check_positive, micros
from jobpool_backends.sqlite import calls, removing
from jobpool_backends.sqlite.counts import Counts
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.filters import LIVING
from jobpool_backends.sqlite.inspect import Inspector, find
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

Rows = list[tuple[int, str, int, str, int, str]]


class BulkChanges:
    """The bulk changes of one database."""

    def __init__(self, database: Database, clock: Clock, inspector: Inspector) -> None:
        self._database = database
        self._clock = clock
        self._inspector = inspector

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        check_positive(limit, "limit")
        states = tuple(state for state in TOUCHABLE[verb] if not where.states or state in where.states)
        touchable = replace(where, states=states)
        changed = first = 0
        while states and changed < limit:
            found = self._find(touchable, first, min(BULK_BATCH_MESSAGES, limit - changed))
            if not found:
                break
            changed += self._change(touchable, verb, found)
            first = found[-1]
        return changed

    def _find(self, where: MessageFilter, first: int, limit: int) -> list[int]:
        with self._database.read() as connection:
            wanted = self._inspector.search(connection, where, micros(self._clock.wall()))
            return [row[0] for row in find(connection, wanted, "seq", first, limit)]

    def _change(self, where: MessageFilter, verb: Verb, found: list[int]) -> int:
        with self._database.write() as connection:
            now = micros(self._clock.wall())
            wanted = self._inspector.search(connection, where, now)
            sql = (
                "SELECT seq, queue, state, id, given, handler FROM messages"
                f" WHERE seq IN (SELECT value FROM json_each(:found)) AND {LIVING} AND {wanted.where}"
            )
            rows = connection.execute(sql, wanted.arguments | {"found": json.dumps(found)}).fetchall()
            if verb is Verb.DELETE:
                _delete(connection, rows, now)
            else:
                _revive(connection, _RETRY if verb is Verb.RETRY else _RESUME, rows, now)
        return len(rows)


def _revive(connection: sqlite3.Connection, sql: str, rows: Rows, now: int) -> None:
    counts = Counts()
    for _, queue, _, _, _, handler in rows:
        counts.move(queue, DEAD, WAITING if handler else POSTED)
    connection.execute(sql, (now, json.dumps([row[0] for row in rows])))
    counts.write(connection)


def _delete(connection: sqlite3.Connection, rows: Rows, now: int) -> None:
    counts = Counts()
    for _, queue, state, *_ in rows:
        counts.remove(queue, state)
    removing.delete(connection, [row[0] for row in rows])
    calls.remember_ended(connection, [ident for _, _, _, ident, given, _ in rows if given], now)
    counts.write(connection)
