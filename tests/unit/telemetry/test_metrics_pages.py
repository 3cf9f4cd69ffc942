"""Metrics: the collector in memory, its bounds and snapshots, and what a scrape and a probe get of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from jobpool.errors import ConfigurationError
from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.telemetry.metrics import catalogue as names
from jobpool.telemetry.metrics.catalogue import METRICS, RUN_BUCKETS, Kind, Labels, MetricsCollector
from jobpool.telemetry.metrics.memory import FINE_BUCKETS, OTHER, Histogram, MemoryMetrics, Sample, Snapshot, coarser
from jobpool.telemetry.metrics.pages import expose, live, ready


def sample(metrics: MemoryMetrics, metric: names.Metric) -> Sample:
    found = [one for one in metrics.snapshot().samples if one.metric is metric]
    return found[0] if found else Sample(metric)


# --- histograms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0.0, 0), (0.01, 0), (0.0100001, 1), (0.05, 1), (3600.0, 11), (3600.1, 12), (1e9, 12)],
)
def test_an_edge_belongs_to_the_bucket_below_it(value: float, bucket: int) -> None:
    histogram = Histogram(RUN_BUCKETS)
    histogram.add(value)
    assert [index for index, count in enumerate(histogram.counts) if count] == [bucket]


def test_cumulative_counts_end_with_all() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.5, 1.6, 9.0):
        histogram.add(value)
    assert histogram.cumulative() == [("1.0", 1.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.total == pytest.approx(12.6)


def test_a_copy_stays_as_it_was_and_differences_are_what_came_since() -> None:
    histogram = Histogram((1.0,))
    histogram.add(0.5)
    earlier = histogram.copy()
    histogram.add(2.0)
    assert earlier.counts == [1, 0]
    since = histogram.plus(earlier, -1)
    assert (since.counts, since.total) == ([0, 1], 2.0)
    assert since.plus(earlier).counts == histogram.counts


def test_quantiles_are_edges() -> None:
    histogram = Histogram((1.0, 2.0, 3.0))
    for value in (0.5, 0.6, 1.5, 9.0):
        histogram.add(value)
    assert [histogram.quantile(share) for share in (0.0, 0.5, 0.75, 1.0)] == [1.0, 1.0, 2.0, math.inf]
    assert Histogram((1.0,)).quantile(0.5) is None


@given(st.lists(st.floats(0, 1e5)))
def test_coarse_buckets_say_what_fine_ones_do(values: list[float]) -> None:
    fine, coarse = Histogram(FINE_BUCKETS), Histogram(RUN_BUCKETS)
    for value in values:
        fine.add(value)
        coarse.add(value)
    assert coarser(fine, RUN_BUCKETS).counts == coarse.counts


def test_every_coarse_edge_is_a_fine_one() -> None:
    assert set(RUN_BUCKETS) <= set(FINE_BUCKETS)
    assert list(FINE_BUCKETS) == sorted(FINE_BUCKETS)


# --- counting ---------------------------------------------------------------------------------------------------------


def test_an_end_is_counted_by_queue_handler_and_outcome() -> None:
    metrics = MemoryMetrics()
    metrics.ended("reports", "pdf", ("succeeded",), 0.2, 3.0)
    metrics.ended("reports", "pdf", ("failed", "requeued"), 0.7)
    metrics.ended("mail", "", ("rejected_signature",))
    assert sample(metrics, names.JOBS).values == {
        ("reports", "pdf", "succeeded"): 1,
        ("reports", "pdf", "failed"): 1,
        ("reports", "pdf", "requeued"): 1,
        ("mail", "", "rejected_signature"): 1,
    }
    runs = sample(metrics, names.RUN).histograms
    assert (runs["reports", "pdf"].count, runs["reports", "pdf"].total) == pytest.approx((2, 0.9))
    assert list(sample(metrics, names.WAIT).histograms) == [("reports", "pdf")], "only what ran has times"


def test_the_interface_counts_the_same_by_its_own_means() -> None:
    class Plain(MetricsCollector):
        def __init__(self) -> None:
            self.seen: list[tuple[str, Labels, float]] = []

        def count(self, metric: names.Metric, labels: Labels = (), by: int = 1) -> None:
            self.seen.append((metric.name, labels, by))

        def observe(self, metric: names.Metric, value: float, labels: Labels = ()) -> None:
            self.seen.append((metric.name, labels, value))

    plain = Plain()
    plain.fetched("reports", 3)
    plain.ended("reports", "pdf", ("failed", "requeued"), 0.5, 2.0)
    assert plain.seen == [
        ("jobs_fetched", ("reports",), 3),
        ("jobs", ("reports", "pdf", "failed"), 1),
        ("jobs", ("reports", "pdf", "requeued"), 1),
        ("job_run_seconds", ("reports", "pdf"), 0.5),
        ("job_wait_seconds", ("reports", "pdf"), 2.0),
    ]


def test_handlers_beyond_the_cap_are_counted_under_other_and_that_is_counted() -> None:
    metrics = MemoryMetrics(most_series=2)
    for handler in ("a", "b", "c", "d", "a"):
        metrics.ended("q", handler, ("succeeded",), 0.1, 0.1)
    assert sample(metrics, names.JOBS).values == {
        ("q", "a", "succeeded"): 2,
        ("q", "b", "succeeded"): 1,
        ("q", OTHER, "succeeded"): 2,
    }
    assert sample(metrics, names.LABELS_DROPPED).values == {(): 2}


def test_other_labels_have_the_same_cap() -> None:
    metrics = MemoryMetrics(most_series=2)
    for cause in ("SIGSEGV", "SIGKILL", "SIGBUS", "SIGFPE"):
        metrics.count(names.EXITS, (cause,))
        metrics.observe(names.SETTLE, 0.1)
    assert sample(metrics, names.EXITS).values == {("SIGSEGV",): 1, ("SIGKILL",): 1, (OTHER,): 2}
    assert metrics.dropped == 2


def test_each_queue_has_gauges_of_its_own_however_many_there_are() -> None:
    metrics = MemoryMetrics(most_series=2)
    values = {(f"q{number}", "waiting"): float(number) for number in range(4)}
    for labels, value in values.items():
        metrics.gauge(names.MESSAGES, value, labels)
    assert sample(metrics, names.MESSAGES).values == values
    assert metrics.dropped == 0


def test_a_gauge_is_replaced_and_a_counter_added_to() -> None:
    metrics = MemoryMetrics()
    for value in (3, 5):
        metrics.gauge(names.PEAK_RSS, value)
        metrics.count(names.FETCHED, ("q",), value)
    assert sample(metrics, names.PEAK_RSS).values == {(): 5}
    assert sample(metrics, names.FETCHED).values == {("q",): 8}


def test_a_snapshot_does_not_change_with_what_comes_later() -> None:
    metrics = MemoryMetrics()
    metrics.ended("q", "h", ("succeeded",), 0.1, 0.1)
    metrics.observe(names.SETTLE, 0.1)
    taken = metrics.snapshot()
    metrics.ended("q", "h", ("succeeded",), 0.1, 0.1)
    metrics.observe(names.SETTLE, 0.1)
    assert taken.ended["q", "h"].outcomes == {"succeeded": 1}
    assert taken.ended["q", "h"].run.count == 1
    counts = {one.metric.name: [h.count for h in one.histograms.values()] for one in taken.samples if one.histograms}
    assert counts == {"settle_seconds": [1], "job_run_seconds": [1], "job_wait_seconds": [1]}


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_labels_are_of_the_bounded_kind() -> None:
    used = {label for metric in METRICS if metric is not names.BUILD for label in metric.labels}
    assert used == {"queue", "handler", "outcome", "state", "cause"}


def test_names_are_unique_and_say_their_kind() -> None:
    shown = [metric.shown for metric in METRICS]
    assert len(set(shown)) == len(shown)
    assert all(metric.shown.endswith("_total") == (metric.kind is Kind.COUNTER) for metric in METRICS)
    assert all(bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM) for metric in METRICS)
    assert all(list(metric.buckets) == sorted(metric.buckets) for metric in METRICS)


def snapshot() -> Snapshot:
    metrics = MemoryMetrics()
    metrics.ended("reports", 'odd "name"\n\\', ("succeeded",), 0.2, 30.0)
    metrics.ended("reports", "pdf", ("failed", "failed_permanently"), 7.0)
    metrics.gauge(names.MESSAGES, 12, ("reports", "waiting"))
    metrics.count(names.EXITS, ("SIGSEGV",), 2)
    return metrics.snapshot()


def values(families: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_what_was_counted_is_what_is_read() -> None:
    for case, accept, read in [
        ("plain", "", parse),
        ("open", "application/openmetrics-text; version=1.0.0", parse_open),
    ]:
        body, content_type = expose(snapshot(), accept)
        assert ("openmetrics" in content_type) == bool(accept), case
        found = values(read(body.decode()))
        pdf = {("queue", "reports"), ("handler", "pdf")}
        odd = {("queue", "reports"), ("handler", 'odd "name"\n\\')}
        assert found["jobpool_jobs_total", frozenset({*pdf, ("outcome", "failed_permanently")})] == 1, case
        assert found["jobpool_jobs_total", frozenset({*odd, ("outcome", "succeeded")})] == 1, case
        assert found["jobpool_job_run_seconds_bucket", frozenset({*pdf, ("le", "5.0")})] == 0, case
        assert found["jobpool_job_run_seconds_bucket", frozenset({*pdf, ("le", "15.0")})] == 1, case
        assert found["jobpool_job_run_seconds_sum", frozenset(pdf)] == 7.0, case
        assert found["jobpool_job_wait_seconds_count", frozenset(odd)] == 1, case
        assert found["jobpool_queue_messages", frozenset({("queue", "reports"), ("state", "waiting")})] == 12, case
        assert found["jobpool_child_exits_total", frozenset({("cause", "SIGSEGV")})] == 2, case
        assert found["jobpool_kill_overrun_seconds_count", frozenset()] == 0, "0, so that a rate begins with the first"


def test_every_metric_of_the_catalogue_is_announced() -> None:
    body, _ = expose(MemoryMetrics().snapshot())
    told = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
    assert told == {metric.shown for metric in METRICS}


def test_the_buckets_are_those_of_long_jobs() -> None:
    body, _ = expose(snapshot())
    lines = [line for line in body.decode().splitlines() if line.startswith("jobpool_job_wait_seconds_bucket")]
    edges = [line.partition('le="')[2].partition('"')[0] for line in lines]
    assert edges == [*(str(edge) for edge in RUN_BUCKETS), "+Inf"]


@pytest.mark.usefixtures("no_client")
def test_without_prometheus_client_the_mend_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'prometheus-client>=0.21'"):
        expose(snapshot())


# --- probes --------------------------------------------------------------------------------------------------------


NOW = 1000.0


@pytest.fixture
def well() -> HeaderView:
    """What the header of a healthy pool says."""
    with Scoreboard.create(None, 2) as board:
        board.header.write(
            workers=4, ready=4, started=900.0, loop_at=999.5, broker_ok_at=998.0, broker_interval=3.0, backend="x://"
        )
        return board.header.read()


@pytest.mark.parametrize(
    ("change", "is_live", "is_ready", "words"),
    [
        pytest.param({}, True, True, "ready: 4 of 4", id="well"),
        pytest.param({"ready": 1}, True, True, "ready: 1 of 4", id="one child is enough"),
        pytest.param({"ready": 5}, True, True, "4 of 4 children ready, and 1 that will leave", id="a reload"),
        pytest.param({"draining": 1}, True, True, "draining", id="draining"),
        pytest.param({"ready": 0, "problem": "no module"}, True, False, "0 of 4 children ready; no module", id="none"),
        pytest.param({"boot_failures": 5}, True, False, "not ready", id="boot loop"),
        pytest.param({"boot_failures": 4}, True, True, "ready", id="some failures"),
        pytest.param({"broker_ok_at": 990.0}, True, False, "degraded: the broker last answered", id="broker away"),
        pytest.param({"broker_ok_at": 991.0}, True, True, "ready", id="broker slow"),
        pytest.param({"loop_at": 994.9}, False, False, "has not turned its loop", id="hangs"),
        pytest.param({"loop_at": 995.0}, True, True, "ready", id="just not"),
        pytest.param({"loop_at": 0.0, "started": 999.0}, True, True, "ready", id="young"),
    ],
)
def test_probes(well: HeaderView, change: dict[str, object], is_live: bool, is_ready: bool, words: str) -> None:
    header = replace(well, **change)
    assert live(header, NOW).ok is is_live
    assert ready(header, NOW).ok is is_ready
    assert words in ready(header, NOW).text
