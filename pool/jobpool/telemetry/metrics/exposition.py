"""Turns a snapshot into what Prometheus scrapes. All of it happens when a scrape asks, in the scrape's own thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from jobpool.errors import ConfigurationError
from jobpool.telemetry.metrics.catalogue import METRICS, Kind, Metric
from jobpool.telemetry.metrics.memory import Histogram, Sample, Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

MEND = "metrics need prometheus-client: pip install 'jobpool[metrics]'"


def require_client() -> None:
    """Import prometheus-client, about 30 ms and 5 MB.

    Raises:
        ConfigurationError: It is not installed; the text names the mend.
    """
    try:
        import prometheus_client.core  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(MEND) from error


def expose(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return the text of a scrape and its content type: OpenMetrics where `accept` asks for it, else Prometheus' own.

    Raises:
        ConfigurationError: prometheus-client is not installed.
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
