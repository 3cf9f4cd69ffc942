"""Rows of the past: counts of one pool, one handler, one queue and one minute.

A row is a few numbers, however many jobs there were, so that weeks of them can be kept after the jobs are gone. Each
lies under a key that begins with its minute, so that rows can be read from any moment on. `Row.plus` adds rows up.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from jobpool.broker.key_store import KeyStore, all_records
from jobpool.errors import JobpoolError
from jobpool.telemetry.metrics.memory import FINE_BUCKETS, Histogram, Series

SPACE = "rollups"
PAGE_ROWS = 5_000  # rows that are read back in one round trip
MAX_PENDING_ROWS = 5_000  # rows that are kept while the broker is away
MAX_ROWS_A_CALL = 500

MINUTE = 60
HOUR = 3600

SeriesByPlace = Mapping[tuple[str, str], Series]  # by queue and handler

log = logging.getLogger("jobpool.metrics")


class Row(Struct, frozen=True):
    """The counts of jobs of `handler` on `queue` in the `seconds` from `start` (Unix time) on."""

    start: int
    queue: str
    handler: str
    outcomes: dict[str, int]  # as in `outcome.OUTCOMES`
    run: Histogram  # how long the handler ran, in the buckets `FINE_BUCKETS`
    seconds: int = MINUTE

    def plus(self, other: Row) -> Row:
        """Return both together; of the same time and place."""
        words = {*self.outcomes, *other.outcomes}
        outcomes = {word: self.outcomes.get(word, 0) + other.outcomes.get(word, 0) for word in words}
        return Row(self.start, self.queue, self.handler, outcomes, self.run.plus(other.run), self.seconds)

    def encode(self) -> bytes:
        """Return the stored form: JSON, counts of buckets without the empty ones at the end."""
        counts = list(self.run.counts)
        while counts and not counts[-1]:
            counts.pop()
        fields = {"s": self.start, "q": self.queue, "h": self.handler, "o": self.outcomes, "r": counts}
        return json.dumps({**fields, "t": round(self.run.total, 6)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode(value: bytes) -> Row | None:
    """Return the row in a record; None: it is none that this version understands."""
    try:
        fields: dict[str, Any] = json.loads(value)
        counts = [int(count) for count in fields["r"]]
        counts += [0] * (len(FINE_BUCKETS) + 1 - len(counts))
        if len(counts) != len(FINE_BUCKETS) + 1:
            return None
        outcomes = {str(word): int(count) for word, count in fields["o"].items()}
        run = Histogram(FINE_BUCKETS, counts, float(fields["t"]))
        return Row(int(fields["s"]), str(fields["q"]), str(fields["h"]), outcomes, run)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def rows(minute: int, before: SeriesByPlace, after: SeriesByPlace) -> list[Row]:
    """Return the difference of two snapshots, without the places that stayed the same."""
    found = []
    for (queue, handler), now in after.items():
        then = before.get((queue, handler)) or Series()
        changes = {word: count - then.outcomes.get(word, 0) for word, count in now.outcomes.items()}
        if outcomes := {word: count for word, count in changes.items() if count}:
            found.append(Row(minute, queue, handler, outcomes, now.run.plus(then.run, -1)))
    return found


def key(row: Row, pool: str) -> str:
    """Return where a row lies: its minute, then a digest of its place and of the pool's own id."""
    place = hashlib.blake2s(f"{row.queue}\0{row.handler}\0{pool}".encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{stamp(row.start)}.{place}"


def stamp(moment: float) -> str:
    """Return the beginning of the keys of that minute; texts in the order of time."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M")


def minute_of(moment: float) -> int:
    return int(moment // MINUTE) * MINUTE


def summed(every: Iterable[Row], seconds: int) -> list[Row]:
    """Sum up over pools, and over spans of `seconds` (a multiple of 60); in the order of time, queue, handler."""
    found: dict[tuple[int, str, str], Row] = {}
    for row in every:
        start = row.start // seconds * seconds
        whole = Row(start, row.queue, row.handler, row.outcomes, row.run, seconds)
        place = (start, row.queue, row.handler)
        found[place] = found[place].plus(whole) if place in found else whole
    return [found[place] for place in sorted(found)]


def rollups(keys: KeyStore, since: float, until: float) -> Iterator[Row]:
    """Yield the rows of the minutes that begin in [since, until), Unix times, in their order; of all pools.

    Raises `BackendUnavailable`. Blocks for a round trip each `PAGE_ROWS` rows.
    """
    end = stamp(until)
    for name, value in all_records(keys, SPACE, after=stamp(since), page=PAGE_ROWS):
        if name >= end:
            return
        if (row := decode(value)) is not None:
            yield row


class RollupThread(threading.Thread):
    """The thread that sums up each minute, and writes it to the broker's key store, for `ttl` seconds.

    `pool`: an id that no other run of a pool has. `counts`, called from this thread, tells all counts since the start;
    None: the loop does not answer. `wall`: Unix time.
    """

    def __init__(
        self,
        keys: KeyStore,
        pool: str,
        ttl: float,
        counts: Callable[[], SeriesByPlace | None],
        wall: Callable[[], float],
    ) -> None:
        super().__init__(name="rollups", daemon=True)
        self._keys = keys
        self._pool = pool
        self._ttl = ttl
        self._counts = counts
        self._wall = wall
        self._end = threading.Event()
        self._before: SeriesByPlace = {}
        self._last: SeriesByPlace | None = None
        self._pending: dict[str, Row] = {}
        self._written = 0
        self._failing = False
        self._minute = minute_of(wall())

    def run(self) -> None:
        """Write until the end. No error ends the thread before, because the pool has no other that would write."""
        is_over = False
        while not is_over:
            until_next = max(0.1, self._minute + MINUTE - self._wall())
            is_over = self._end.wait(min(MINUTE, until_next))  # a minute at most, wherever the clock was set to
            try:
                self.write(self._last if is_over else self._counts())
            except Exception as error:  # noqa: BLE001 - it is told, and the next minute is another try
                self._failed(error)

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._end.set()

    def finish(self, counts: SeriesByPlace, limit: float) -> None:
        """Write what has come since the last minute, and end. Blocks for at most `limit` seconds."""
        self._last = counts
        self.stop()
        self.join(limit)

    def write(self, counts: SeriesByPlace | None) -> None:
        """Write the minute that began last, and what could not be written before; an error is said once."""
        if counts is not None:
            self._written += 1  # a part of the key: a minute comes twice when the clock is set back
            for row in rows(self._minute, self._before, counts):
                self._pending[key(row, f"{self._pool}:{self._written}")] = row
            self._before = counts
            self._minute = minute_of(self._wall())
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

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            text = str(error) if isinstance(error, JobpoolError) else repr(error)
            log.warning("rollups cannot be written; trying again each minute", extra={"error": text})
        self._failing = True
        for name in list(self._pending)[:-MAX_PENDING_ROWS]:
            del self._pending[name]
