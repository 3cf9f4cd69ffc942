"""Taking back messages whose lease has expired: one statement, and one that changes nothing when there are none."""

from __future__ import annotations

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.message.definition import LONGEST
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.schema import REAP_LIMIT
from jobpool_backends.shared import micros, more_than

_REAP = """
SELECT * FROM {schema}.reap(%(queue)b, %(max_crashes)b, %(window)b::bigint, %(back_off)b::float8, %(cap)b::float8,
    %(visible)b::bigint, %(limit)b)
"""


class Reaper:
    """The reaper of one database's queues."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        asked = {
            "queue": queue,
            "max_crashes": policy.max_crashes,
            "window": micros(min(policy.window, LONGEST)),
            "back_off": float(min(policy.back_off, LONGEST)),
            "cap": float(min(policy.back_off_cap, LONGEST)),
            "visible": None if visibility_timeout is None else more_than(visibility_timeout),
            "limit": REAP_LIMIT,
        }
        return [
            Reaped(ident, queue, crashes, cause, dead)
            for ident, crashes, cause, dead in self._database.run(_REAP, asked)
        ]
