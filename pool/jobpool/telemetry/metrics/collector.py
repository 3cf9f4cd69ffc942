"""The interface behind which a pool's numbers are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jobpool.telemetry.metrics.catalogue import FETCHED, JOBS, RUN, WAIT, Metric

Labels = tuple[str, ...]
"""Values, in the order of `Metric.labels`."""


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

    @abstractmethod
    def gauge(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Set a gauge; what was set before is replaced."""

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
