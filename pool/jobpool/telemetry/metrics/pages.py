"""The pages of the server: metrics for Prometheus, and the answers of `/livez` and `/readyz`. Pure.

The probes look at the scoreboard's header alone, and never ask the broker. Live: the master's loop turns; a restart
mends it if it does not. Ready: it also has a child that is ready, children boot, and the broker answers. An outage of
the broker makes a pool not ready, never dead: a restart would mend nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from msgspec import Struct

from jobpool.errors import ConfigurationError
from jobpool.ipc.board_layout import HeaderView
from jobpool.message.printable import one_line
from jobpool.message.units import format_duration
from jobpool.telemetry.metrics.catalogue import METRICS, Kind, Metric
from jobpool.telemetry.metrics.memory import Histogram, Sample, Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

MEND = "metrics need prometheus-client: pip install 'prometheus-client>=0.21'"
LOOP_LIMIT = 5.0  # seconds: the master's loop turns at least once a second, even when there is nothing to do
BROKER_SILENT = "the broker does not answer"  # the header's `problem` while this is so
BROKER_REFUSES = "the broker refuses: "  # begins the header's `problem` while this is so; its reason follows
MISSED = 3  # how many intervals the broker's answer may be late
BOOT_LOOP = 5  # children in a row that did not come up: not an accident any more


class Page(Struct, frozen=True):
    """An answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def text_page(status: int, text: str) -> Page:
    """Return a page of plain text on one line, safe for a terminal, with an end of line."""
    return Page(status, f"{one_line(text)}\n".encode())


View = Callable[[str], Page]  # makes a page; its argument is the request's `Accept` header. May block for some seconds


class Probe(Struct, frozen=True):
    """An answer, and the sentence for a person."""

    ok: bool
    text: str


def live(header: HeaderView, now: float) -> Probe:
    """Check whether the loop turns. `now`: CLOCK_MONOTONIC seconds, as the times in the header."""
    silent = seconds_since(header.loop_at, header, now)
    if silent > LOOP_LIMIT:
        return Probe(False, f"the master has not turned its loop for {format_duration(silent)}")
    return Probe(True, "live")


def ready(header: HeaderView, now: float) -> Probe:
    """Check whether the pool can do its work."""
    alive = live(header, now)
    if not alive.ok:
        return alive
    children = ready_children(header)
    if header.ready < 1 or header.boot_failures >= BOOT_LOOP:
        return Probe(False, f"not ready: {children}" + (f"; {header.problem}" if header.problem else ""))
    if refuses(header):
        return Probe(False, f"degraded: {header.problem}; {children}")
    silent = seconds_since(header.broker_ok_at, header, now)
    if silent > MISSED * header.broker_interval:
        return Probe(False, f"degraded: the broker last answered well {format_duration(silent)} ago; {children}")
    return Probe(True, f"ready: {children}" + (", draining" if header.draining else ""))


def refuses(header: HeaderView) -> bool:
    """Return whether the broker refuses the pool; the header's `problem` says why."""
    return header.problem.startswith(BROKER_REFUSES)


def ready_children(header: HeaderView) -> str:
    """Tell how many children are ready; those above the number of workers leave after their jobs."""
    above = header.ready - header.workers
    more = f", and {above} that will leave" if above > 0 else ""
    return f"{min(header.ready, header.workers)} of {header.workers} children ready{more}"


def seconds_since(moment: float, header: HeaderView, now: float) -> float:
    """Return seconds since `moment`, or since the start before it happened, so that a young pool is not ill."""
    return max(0.0, now - (moment or header.started))


def require_client() -> None:
    """Import prometheus-client, about 30 ms and 5 MB. Raises `ConfigurationError`: it is not installed."""
    try:
        import prometheus_client.core  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(MEND) from error


def expose(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return the text of a scrape and its content type: OpenMetrics where `accept` asks for it, else Prometheus' own.

    All of it happens in the scrape's own thread. Raises as `require_client`.
    """
    require_client()
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    found = {sample.metric: sample for sample in snapshot.samples}
    # Each metric of the catalogue, also those without a value yet, so that alerts can name them.
    families = [_family(metric, found.get(metric, Sample(metric))) for metric in METRICS]
    return encode(SimpleNamespace(collect=lambda: families)), content_type


def _family(metric: Metric, sample: Sample) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    name = f"jobpool_{metric.name}"
    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(name, metric.text, labels=metric.labels)
        every = sample.histograms if metric.labels else {(): Histogram(metric.buckets), **sample.histograms}
        for labels, histogram in sorted(every.items()):
            family.add_metric(labels, histogram.cumulative(), histogram.total)
        return family
    maker = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    values = maker(name, metric.text, labels=metric.labels)
    for labels, value in sorted(sample.values.items()):
        values.add_metric(labels, value)
    return values
