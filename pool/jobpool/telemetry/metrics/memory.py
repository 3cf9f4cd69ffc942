"""The collector of a pool: plain numbers in memory, with a bound on how many series there can be.

It has no lock. One thread writes, and the same thread makes the `snapshot` that others read: see master/observer.py.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import inf
from typing import Any

from msgspec import Struct, field

from jobpool.message.outcome import SUMS, Counts
from jobpool.telemetry.metrics.catalogue import (
    FETCHED,
    JOBS,
    LABELS_DROPPED,
    RUN,
    RUN_BUCKETS,
    WAIT,
    Labels,
    Metric,
    MetricsCollector,
)

MAX_SERIES = 1000  # sets of labels that a metric, or that queues and handlers together, can have
OTHER = "other"  # the label of what goes beyond
UNCOUNTED = "an event of the pool could not be counted"

log = logging.getLogger("jobpool.metrics")

FINE_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0),
    *(600.0, 900.0, 1800.0, 3600.0, 7200.0),
)
"""Seconds, about logarithmic. Every edge of `RUN_BUCKETS` is among them, so one search a job serves both."""


class Histogram(Struct):
    """Plain counts between edges, written by one thread; other threads read a `copy`.

    `counts[i]` values were at most `edges[i]` and above the edge before; the last count is of those above all.
    """

    edges: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts[:] or [0] * (len(self.edges) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        return Histogram(self.edges, self.counts, self.total)

    def plus(self, other: Histogram, times: int = 1) -> Histogram:
        """Return both together; their edges are the same. `times` -1: the difference to `other`, an older copy."""
        counts = [mine + times * theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.edges, counts, self.total + times * other.total)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper edge, how many were at most that), with `+Inf` at the end: as Prometheus wants it."""
        edges = [*(repr(float(edge)) for edge in self.edges), "+Inf"]
        return list(zip(edges, map(float, accumulate(self.counts)), strict=True))

    def quantile(self, share: float) -> float | None:
        """Return the upper edge below which `share` (0 to 1) of the values are; infinity above all, None of none."""
        wanted = share * self.count
        for edge, count, so_far in zip((*self.edges, inf), self.counts, accumulate(self.counts), strict=True):
            if count and so_far >= wanted:
                return edge
        return None


class Series(Struct):
    """The counts of one handler on one queue. Times are seconds."""

    outcomes: dict[str, int] = field(default_factory=dict)
    run: Histogram = field(default_factory=partial(Histogram, FINE_BUCKETS))
    wait: Histogram = field(default_factory=partial(Histogram, RUN_BUCKETS))

    def copy(self) -> Series:
        return Series(dict(self.outcomes), self.run.copy(), self.wait.copy())


class Sample(Struct, frozen=True):
    """One metric with the values of all its label sets."""

    metric: Metric
    values: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, Histogram] = field(default_factory=dict)


class Snapshot(Struct, frozen=True):
    """All numbers of one moment. `ended`: by (queue, handler), with the finer buckets of rollups."""

    samples: list[Sample]
    ended: dict[tuple[str, str], Series]


class MemoryMetrics(MetricsCollector):
    """The pool's counts in memory. Label sets beyond `most_series` (>= 1) count under `other`; gauges have all."""

    def __init__(self, most_series: int = MAX_SERIES) -> None:
        self._most = most_series
        self._values: dict[Metric, dict[Labels, float]] = {}
        self._histograms: dict[Metric, dict[Labels, Histogram]] = {}
        self._series: dict[str, dict[str, Series]] = {}
        self._count = 0
        self.dropped = 0

    def count(self, metric: Metric, labels: Labels = (), by: int = 1) -> None:
        values = self._values.setdefault(metric, {})
        labels = self._bounded(values, labels)
        values[labels] = values.get(labels, 0) + by

    def ran(self, queue: str) -> int:
        """Count the attempts from a queue that had a verdict. Some microseconds for each of its handlers."""
        return sum([series.run.count for series in self._series.get(queue, {}).values()])

    def gauge(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Set a gauge to this value."""
        self._values.setdefault(metric, {})[labels] = value

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        histograms = self._histograms.setdefault(metric, {})
        labels = self._bounded(histograms, labels)
        if labels not in histograms:
            histograms[labels] = Histogram(metric.buckets)
        histograms[labels].add(value)

    def _bounded(self, known: dict[Labels, float] | dict[Labels, Histogram], labels: Labels) -> Labels:
        if labels in known or len(known) < self._most:
            return labels
        self.dropped += 1
        return (OTHER,) * len(labels)

    def series(self, queue: str, handler: str) -> Series:
        by_handler = self._series.setdefault(queue, {})
        if handler not in by_handler:
            if self._count >= self._most:
                self.dropped += 1
                handler = OTHER
            else:
                self._count += 1
        return by_handler.get(handler) or by_handler.setdefault(handler, Series())

    def ended(
        self, queue: str, handler: str, outcomes: tuple[str, ...], run: float | None = None, wait: float | None = None
    ) -> None:
        try:
            series = self._series[queue][handler]
        except KeyError:
            series = self.series(queue, handler)
        for outcome in outcomes:
            series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1
        # As `Histogram.add` does: this is done for every job.
        if run is not None:
            series.run.counts[bisect_left(FINE_BUCKETS, run)] += 1
            series.run.total += run
        if wait is not None:
            series.wait.counts[bisect_left(RUN_BUCKETS, wait)] += 1
            series.wait.total += wait

    def totals(self) -> Counts:
        """Sum up over all queues and handlers. Only the thread that writes may call it."""
        found: Counter[str] = Counter()
        for by_handler in self._series.values():
            for series in by_handler.values():
                found.update(series.outcomes)
        sums = {name: sum(found[outcome] for outcome in outcomes) for name, outcomes in SUMS.items()}
        return Counts(**sums | {"fetched": int(sum(self._values.get(FETCHED, {}).values()))})

    def snapshot(self) -> Snapshot:
        """Return a copy of everything. Only the thread that writes may call it; about 5 µs a handler and queue."""
        samples = [Sample(metric, values=dict(values)) for metric, values in self._values.items()]
        for metric, histograms in self._histograms.items():
            copies = {labels: histogram.copy() for labels, histogram in histograms.items()}
            samples.append(Sample(metric, histograms=copies))
        samples.append(Sample(LABELS_DROPPED, {(): self.dropped}))
        ended = {(queue, name): one.copy() for queue, every in self._series.items() for name, one in every.items()}
        jobs: dict[Labels, float] = {
            (*place, key): n for place, one in ended.items() for key, n in one.outcomes.items()
        }
        runs: dict[Labels, Histogram] = {
            place: coarser(one.run, RUN_BUCKETS) for place, one in ended.items() if one.run.count
        }
        waits: dict[Labels, Histogram] = {place: one.wait for place, one in ended.items() if one.wait.count}
        samples += [Sample(JOBS, jobs), Sample(RUN, histograms=runs), Sample(WAIT, histograms=waits)]
        return Snapshot(samples, ended)


def try_count(count: Callable[..., object], *what: Any) -> None:
    """Count it. An error in that harms no job."""
    try:
        count(*what)
    except Exception:
        log.exception(UNCOUNTED, extra={"limit": "metrics"})


class RelayedMetrics(MemoryMetrics):
    """The pool's counts in memory, each told to a collector of the user's too, whatever that one raises."""

    def __init__(self, also: MetricsCollector) -> None:
        super().__init__()
        self._also = also

    def count(self, *what: Any) -> None:
        super().count(*what)
        try_count(self._also.count, *what)

    def observe(self, *what: Any) -> None:
        super().observe(*what)
        try_count(self._also.observe, *what)

    def fetched(self, queue: str, count: int) -> None:
        super().count(FETCHED, (queue,), count)
        try_count(self._also.fetched, queue, count)

    def ended(self, *what: Any) -> None:
        super().ended(*what)
        try_count(self._also.ended, *what)


def coarser(fine: Histogram, edges: tuple[float, ...]) -> Histogram:
    """Return the same values between fewer edges, each of which is an edge of `fine`."""
    counts = [0] * (len(edges) + 1)
    for edge, count in zip((*fine.edges, inf), fine.counts, strict=True):
        counts[bisect_left(edges, edge)] += count
    return Histogram(edges, counts, fine.total)
