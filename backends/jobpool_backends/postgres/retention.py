"""Retention: outdated rows are swept, and dead letters beyond the URL's caps removed."""

from __future__ import annotations

import time
from collections.abc import Iterable

from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool_backends.postgres.database import Database

_SWEEP_BATCH_ROWS = 2000
_SWEEP_INTERVAL_S = 5.0
_SWEEP = "SELECT {schema}.sweep(%(most)b)"

_EVICT_BATCH_MESSAGES = 1000
_MAX_ROUNDS = 5
"""Statements for one queue after one call. The next call goes on: somebody has set a cap on a long list."""

_EVICT = "SELECT {schema}.evict(%(queue)b, %(kept)b::bigint, %(age)b::bigint, %(most)b)"
_EVICTED = "SELECT {schema}.evicted(%(queue)b)"


class Sweeper:
    """A sweeper of outdated rows, a bounded piece at a time, between the calls that add to it.

    Shared by threads without a lock: all that a race can do is sweep once too often.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._next = 0.0

    def sweep(self) -> None:
        """Delete a piece, when five seconds have passed since the last or that one was full."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SWEEP_INTERVAL_S
        try:
            [(swept,)] = self._database.run(_SWEEP, {"most": _SWEEP_BATCH_ROWS})
        except (BackendUnavailable, AccessRefused):
            return  # the call that brought us here was answered; the next one will meet the error
        if swept >= _SWEEP_BATCH_ROWS:
            self._next = now


class Caps:
    """`dead_max` and `dead_max_age` of one database's address; `any`: there is a cap."""

    def __init__(self, database: Database) -> None:
        self._database = database
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
        [(count,)] = self._database.run(_EVICTED, {"queue": queue})
        return count

    def _shorten(self, queue: str) -> None:
        for _ in range(_MAX_ROUNDS):
            [(gone,)] = self._database.run(_EVICT, self._asked | {"queue": queue})
            if gone < _EVICT_BATCH_MESSAGES:
                return
