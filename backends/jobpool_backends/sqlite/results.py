"""Kept results: looks at them, waits for ends of jobs, and the sweep of those that have ended.

A settlement that ends jobs touches the file `-shm`, which is there while any process has the database open. So only
waiters for a result wake, and not the pools that wait for jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import EACH
from jobpool_backends.sqlite.step import Step
from jobpool_backends.sqlite.wait import UNNOTIFIED_LOOK_INTERVAL_S, Listeners

_GET = f"SELECT id, record FROM results WHERE id IN {EACH} AND until > ?"
_LIVE = f"SELECT count(*) FROM messages INDEXED BY messages_by_id WHERE id IN {EACH} AND state <> 3"
_UP_TO = "SELECT id FROM results WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?"
_SWEEP = "DELETE FROM results WHERE id > ? AND id <= ? AND until <= ?"
_SWEEP_REST = "DELETE FROM results WHERE id > ? AND until <= ?"

MIN_SWEPT_ROWS, MAX_SWEPT_ROWS = 500, 20_000  # looked at by one sweep


class Results:
    """The results of one database. `kept`: how many this process has kept since its last sweep, or a few more."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners = Listeners(database.shared)
        self.close = self._listeners.close
        self.kept = 0
        self._swept_to = ""

    def get(self, idents: Sequence[str]) -> dict[str, bytes]:
        with self._database.session() as connection:
            return dict(connection.execute(_GET, (json.dumps(idents), self._database.wall())).fetchall())

    def wait(self, idents: Sequence[str], timeout: float) -> None:
        with self._listeners.lend() as listener:
            with self._database.session() as connection:
                (live,) = connection.execute(_LIVE, (json.dumps(idents),)).fetchone()
            if live < len(idents):
                return
            if listener is None:
                time.sleep(min(timeout, UNNOTIFIED_LOOK_INTERVAL_S))
            else:
                listener.wait(timeout)

    def sweep(self, step: Step) -> None:
        """Remove ended ones among the next rows: more than were kept meanwhile, so that the rounds keep up."""
        rows = min(MAX_SWEPT_ROWS, MIN_SWEPT_ROWS + 3 * self.kept)
        self.kept = 0
        last = step.execute(_UP_TO, (self._swept_to, rows)).fetchone()
        if last is None:
            step.execute(_SWEEP_REST, (self._swept_to, step.now.wall))
            self._swept_to = ""
        else:
            step.execute(_SWEEP, (self._swept_to, last[0], step.now.wall))
            self._swept_to = last[0]
