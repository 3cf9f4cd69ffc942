"""Every metric: its name, labels, buckets and meaning; and the interface behind which a pool's numbers are kept.

Docs, collector and exposition all go by this table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from functools import partial

from msgspec import Struct

RUN_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
"""Seconds; for jobs that may be long (SEMANTICS §5)."""

SETTLE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
OVERRUN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
MARGIN_BUCKETS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 300.0)


class Kind(StrEnum):
    """The treatment of a metric's values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(Struct, frozen=True, eq=False):
    """One metric. `name` is without the prefix and, of a counter, without `_total`; `buckets` are upper edges."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """Its name in Prometheus."""
        return f"jobpool_{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"


METRICS: list[Metric] = []


def _metric(kind: Kind, name: str, labels: str, text: str, buckets: tuple[float, ...] = ()) -> Metric:
    METRICS.append(Metric(name, kind, tuple(labels.split()), text, buckets))
    return METRICS[-1]


_counter, _gauge, _histogram = (partial(_metric, kind) for kind in Kind)

JOBS = _counter("jobs", "queue handler outcome", "Jobs by what became of them, counted when the broker accepts it.")
FETCHED = _counter("jobs_fetched", "queue", "Messages leased.")
RUN = _histogram("job_run_seconds", "queue handler", "Seconds that handlers ran, however they ended.", RUN_BUCKETS)
WAIT = _histogram(
    "job_wait_seconds",
    "queue handler",
    "Seconds from the enqueue, or from when a job was due, to the start of its first attempt.",
    RUN_BUCKETS,
)
SETTLE = _histogram("settle_seconds", "", "Seconds that the broker took for a call that settles.", SETTLE_BUCKETS)
MESSAGES = _gauge("queue_messages", "queue state", "Messages by state, as the broker last counted them.")
OLDEST = _gauge("queue_oldest_age_seconds", "queue", "Seconds since the enqueue of the oldest message that waits.")
PAUSED = _gauge("queue_paused", "queue", "1 while a person has paused the queue for all pools, else 0.")
SLOTS = _gauge("slots", "state", "Children, by the state of their slots.")
EXITS = _counter("child_exits", "cause", "Ended children, by what ended them.")
PEAK_RSS = _gauge(
    "child_peak_rss_bytes", "", "The highest resident memory of any child that lives, or ended in the last minute."
)
OVERRUN = _histogram(
    "kill_overrun_seconds", "", "Seconds from the timeout of a killed attempt to its child's death.", OVERRUN_BUCKETS
)
MARGIN = _histogram(
    "lease_renew_margin_seconds", "", "Seconds that leases had left when their renewal was answered.", MARGIN_BUCKETS
)
BREAKER = _gauge("breaker_open", "queue", "1 while the circuit breaker keeps the pool from fetching, else 0.")
BUILD = _gauge("build_info", "version", "Always 1; the version that runs.")
CRON_LATENESS = _histogram(
    "cron_lateness_seconds", "", "Seconds from the instant of a schedule to its firing by this pool.", RUN_BUCKETS
)
LABELS_DROPPED = _counter("metrics_labels_dropped", "", "Values counted under `other`, because there were too many.")
HISTORY_DROPPED = _counter("history_dropped", "", "Attempts that the history left out, because it could not keep up.")

Labels = tuple[str, ...]  # values, in the order of `Metric.labels`


class MetricsCollector(ABC):
    """A receiver of a pool's counts and measurements, for instance to hand them on to a system of one's own.

    A pool calls it from one thread, the one that does everything, and some of it once a job: no method may block. An
    error that leaves one is logged, and something stays uncounted. Labels are values of a bounded set, except that a
    handler's name comes from the app and a queue's from the settings.
    """

    @abstractmethod
    def count(self, metric: Metric, labels: Labels = (), by: int = 1) -> None:
        """Add `by` (>= 0) to a counter."""

    @abstractmethod
    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Put one value into a histogram."""

    def fetched(self, queue: str, count: int) -> None:
        """Count messages that were leased at once."""
        self.count(FETCHED, (queue,), count)

    def ended(
        self, queue: str, handler: str, outcomes: tuple[str, ...], run: float | None = None, wait: float | None = None
    ) -> None:
        """Count an accepted settlement. Called once a job: worth overriding where each call counts.

        Args:
            queue: Where the job was fetched from.
            handler: "" when the message named none that could be read.
            outcomes: Some of `message.outcome.OUTCOMES`: a failed attempt is `failed` and the further fate of the job.
            run: Seconds that the handler ran; None = it did not.
            wait: Seconds until its first attempt began; None = this was not the first.
        """
        for outcome in outcomes:
            self.count(JOBS, (queue, handler, outcome))
        if run is not None:
            self.observe(RUN, run, (queue, handler))
        if wait is not None:
            self.observe(WAIT, wait, (queue, handler))
