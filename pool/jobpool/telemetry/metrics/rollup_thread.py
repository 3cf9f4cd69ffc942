"""The thread that sums up each minute, and writes it to the broker's key store (telemetry/metrics/rollup.py)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from jobpool.broker.key_store import KeyStore
from jobpool.errors import JobpoolError
from jobpool.telemetry.metrics.memory import Ended
from jobpool.telemetry.metrics.rollup import MINUTE, SPACE, Place, Row, key, minute_of, rows

MAX_PENDING_ROWS = 5_000
"""Rows that are kept while the broker is away."""

MAX_ROWS_A_CALL = 500

log = logging.getLogger("jobpool.metrics")

Counts = Mapping[Place, Ended]


class RollupThread(threading.Thread):
    """See the module.

    Args:
        keys: Where rows go.
        pool: An id that no other run of a pool has.
        ttl: Seconds for which a row is kept.
        counts: All counts since the start; called from this thread; None: the loop does not answer.
        wall: Unix time.
    """

    def __init__(
        self, keys: KeyStore, pool: str, ttl: float, counts: Callable[[], Counts | None], wall: Callable[[], float]
    ) -> None:
        super().__init__(name="rollups", daemon=True)
        self._keys = keys
        self._pool = pool
        self._ttl = ttl
        self._counts = counts
        self._wall = wall
        self._end = threading.Event()
        self._before: Counts = {}
        self._last: Counts | None = None
        self._pending: dict[str, Row] = {}
        self._written = 0
        self._failing = False
        self._minute = minute_of(wall())

    def run(self) -> None:
        while not self._end.wait(self._until_next()):
            self._try(self._counts)
        self._try(lambda: self._last)

    def _try(self, counts: Callable[[], Counts | None]) -> None:
        """No error ends the thread: the pool has no other that would write."""
        try:
            self.write(counts())
        except Exception as error:  # noqa: BLE001 - it is told, and the next minute is another try
            self._failed(error)

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._end.set()

    def finish(self, counts: Counts, limit: float) -> None:
        """Write what has come since the last minute, and end. Blocks for at most `limit` seconds."""
        self._last = counts
        self.stop()
        self.join(limit)

    def write(self, counts: Counts | None) -> None:
        """Write the minute that began last, and what could not be written before; an error is said once."""
        if counts is not None:
            self._add(counts)
        while self._pending:
            some = dict(list(self._pending.items())[:MAX_ROWS_A_CALL])
            try:
                self._keys.put_records(SPACE, {name: row.encode() for name, row in some.items()}, self._ttl)
            except JobpoolError as error:
                self._failed(error)
                return
            self._failing = False
            for name in some:
                del self._pending[name]

    def _add(self, counts: Counts) -> None:
        """The number of the write is part of the key: a minute comes twice when the clock is set back."""
        self._written += 1
        for row in rows(self._minute, self._before, counts):
            self._pending[key(row, f"{self._pool}:{self._written}")] = row
        self._before = counts
        self._minute = minute_of(self._wall())

    def _until_next(self) -> float:
        """Seconds to the end of the minute; a minute at most, wherever the clock was set to."""
        return min(float(MINUTE), max(0.1, self._minute + MINUTE - self._wall()))

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            log.warning("rollups cannot be written; trying again each minute", extra={"error": _text(error)})
        self._failing = True
        for name in list(self._pending)[:-MAX_PENDING_ROWS]:
            del self._pending[name]


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, JobpoolError) else repr(error)
