"""What a scrape gets, read back with prometheus-client's own parser; when a pool is live, and when it is ready."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from jobpool.errors import ConfigurationError
from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.telemetry.metrics import catalogue as names
from jobpool.telemetry.metrics.catalogue import METRICS, RUN_BUCKETS
from jobpool.telemetry.metrics.memory import MemoryMetrics, Snapshot
from jobpool.telemetry.metrics.pages import expose, live, ready


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
