"""A bound on the dead letters of a queue, where the URL sets one."""

from __future__ import annotations

from collections.abc import Iterable

from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.literals import fill

_EVICT_BATCH_MESSAGES = 1000
_MAX_ROUNDS = 5
"""Statements for one queue after one call. The next call goes on: somebody has set a cap on a long list."""

_EVICT = "SELECT {schema}.evict(%(queue)b, %(kept)b::bigint, %(age)b::bigint, %(most)b)"
_EVICTED = "SELECT {schema}.evicted(%(queue)b)"


class Caps:
    """`dead_max` and `dead_max_age` of one database's address.

    Attributes:
        any: True if there is a cap.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._evict, self._evicted = (fill(sql, database.schema) for sql in (_EVICT, _EVICTED))
        caps = database.address.caps
        self._asked = {"kept": caps.most or None, "age": caps.age or None, "most": _EVICT_BATCH_MESSAGES}
        self.any = bool(caps)

    def enforce(self, queues: Iterable[str]) -> None:
        """Remove what is too old or too much; for when something has died or was reaped in these queues."""
        try:
            for queue in sorted(queues):
                self._shorten(queue)
        except (BackendUnavailable, AccessRefused):
            return  # the call that brought us here was answered; the next one will meet the error

    def evicted(self, queue: str) -> int:
        """Return how many of a queue were removed."""
        count: int
        [(count,)] = self._database.run(self._evicted, {"queue": queue})
        return count

    def _shorten(self, queue: str) -> None:
        for _ in range(_MAX_ROUNDS):
            [(gone,)] = self._database.run(self._evict, self._asked | {"queue": queue})
            if gone < _EVICT_BATCH_MESSAGES:
                return
