"""Rows of the past: what one pool did with one handler's jobs on one queue in one minute.

A row is a few numbers, however many jobs there were, so that weeks of them can be kept after the jobs are gone. Each
lies under a key that begins with its minute, so that rows can be read from any moment on. `Row.plus` adds rows up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobpool.broker.key_store import KeyStore
from jobpool.telemetry.metrics.histogram import Histogram
from jobpool.telemetry.metrics.memory import FINE_BUCKETS, Ended

SPACE = "rollups"
PAGE_ROWS = 5_000
"""Rows that are read back in one round trip."""

MINUTE = 60
HOUR = 3600

Place = tuple[str, str]
"""Queue and handler."""


@dataclass(frozen=True, slots=True)
class Row:
    """The counts of jobs of `handler` on `queue` in the `seconds` from `start` (Unix time) on.

    `outcomes`: as in `outcome.OUTCOMES`. `run`: how long the handler ran, in the buckets `FINE_BUCKETS`.
    """

    start: int
    queue: str
    handler: str
    outcomes: dict[str, int]
    run: Histogram
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


def rows(minute: int, before: Mapping[Place, Ended], after: Mapping[Place, Ended]) -> list[Row]:
    """Return the difference of two snapshots, without the places that stayed the same."""
    found = []
    for (queue, handler), now in after.items():
        then = before.get((queue, handler))
        outcomes = dict(now.outcomes)
        if then is not None:
            outcomes = {w: count - then.outcomes.get(w, 0) for w, count in outcomes.items()}
        outcomes = {word: count for word, count in outcomes.items() if count}
        if outcomes:
            run = now.run if then is None else now.run.without(then.run)
            found.append(Row(minute, queue, handler, outcomes, run))
    return found


def key(row: Row, pool: str) -> str:
    """Return where a row lies: its minute, then a digest of its place and of the pool's own id."""
    place = hashlib.blake2s(f"{row.queue}\0{row.handler}\0{pool}".encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{stamp(row.start)}.{place}"


def stamp(moment: float) -> str:
    """Return the beginning of the keys of that minute; texts in the order of time."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M")


def minute_of(moment: float) -> int:
    """Return the Unix time at which the moment's minute begins."""
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

    Raises:
        BackendUnavailable: The broker does not answer.

    Blocks for a round trip each `PAGE_ROWS` rows.
    """
    after, end = stamp(since), stamp(until)
    while True:
        page = keys.list_records(SPACE, after=after, limit=PAGE_ROWS)
        for name, value in page:
            if name >= end:
                return
            row = decode(value)
            if row is not None:
                yield row
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][0]
