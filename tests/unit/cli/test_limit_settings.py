"""The settings of limits: three sources, one meaning, and bounds that are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tables import row

from jobpool.errors import ConfigurationError
from jobpool.master.run import limits_of
from jobpool.master.serving import unserved_limits
from jobpool.policy.limits import Limits
from jobpool.settings import load

TABLES = """
queues = ["reports", "mails"]
idempotency_ttl = "1h"
[concurrency_limits]
reports = 4
[concurrency_per_key]
reports = 2
[rate_limits]
reports = 600
mails = 60
[rate_per_key]
mails = 6
"""
MEANT = Limits(3600.0, {"reports": 4}, {"reports": 2}, rates={"reports": 600, "mails": 60}, rates_per_key={"mails": 6})


def test_tables_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "jobpool.toml").write_text(TABLES)
    pool = load()
    assert limits_of(pool) == MEANT


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_QUEUES", "reports,mails")
    monkeypatch.setenv("JOBPOOL_IDEMPOTENCY_TTL", "1h")
    monkeypatch.setenv("JOBPOOL_CONCURRENCY_LIMITS", "reports=4")
    monkeypatch.setenv("JOBPOOL_CONCURRENCY_PER_KEY", "reports = 2")
    monkeypatch.setenv("JOBPOOL_RATE_LIMITS", "reports=600, mails=60")
    monkeypatch.setenv("JOBPOOL_RATE_PER_KEY", "mails=6")
    assert limits_of(load()) == MEANT


def test_repeated_flags() -> None:
    flags = {
        "queues": ("reports", "mails"),
        "idempotency_ttl": "3600",
        "concurrency_limits": ("reports=4",),
        "concurrency_per_key": ("reports=2",),
        "rate_limits": ("reports=600", "mails=60"),
        "rate_per_key": ("mails=6",),
    }
    assert limits_of(load(flags)) == MEANT


def test_nothing_is_limited_unless_it_is_said() -> None:
    pool = load()
    assert limits_of(pool) == Limits()
    assert not limits_of(pool)
    assert pool.idempotency_ttl == 86400.0


def test_a_value_out_of_bounds_is_refused_with_the_bound() -> None:
    for key, value, sentence in [
        ("concurrency_limits", ("default",), "--concurrency-limit: 'default' names no limit: write QUEUE=N"),
        (
            "concurrency_limits",
            ("default=-1",),
            "--concurrency-limit: the limit of queue 'default' must be a whole number from 0 (no limit) to 1000000,"
            " not '-1'",
        ),
        (
            "rate_limits",
            ("default=1000001",),
            "--rate-limit: the limit of queue 'default' must be a whole number from 0 (no limit)",
        ),
        ("rate_limits", ("default=2.5",), "must be a whole number from 0 (no limit) to 1000000, not '2.5'"),
        ("rate_limits", {"default": True}, "must be a whole number from 0 (no limit) to 1000000, not True"),
        ("rate_per_key", ("default=1", "default=2"), "--rate-per-key: queue 'default' is named twice"),
        ("concurrency_per_key", ("my queue=1",), "--concurrency-per-key: queue name 'my queue' is refused"),
        ("concurrency_per_key", 4, "--concurrency-per-key: 4 is neither a text nor a list of texts"),
        ("result_ttl", ("1h",), "--result-ttl: '1h' names no time: write QUEUE=TIME, such as reports=1h"),
        ("result_ttl", ("default=31d",), "--result-ttl: the time for results of queue 'default' is at most 30 days"),
        ("result_ttl", ("default=soon",), "--result-ttl"),
        ("idempotency_ttl", "0", "--idempotency-ttl must be greater than 0"),
        ("idempotency_ttl", "367d", "--idempotency-ttl must be less than or equal to 31622400"),
    ]:
        with row(key, value), pytest.raises(ConfigurationError) as refused:
            load({key: value})
        assert sentence in str(refused.value), (key, value)


def test_times_for_results_are_read_by_queue() -> None:
    assert load().result_ttl == {}
    assert load({"result_ttl": ("reports=1h", "mails=90")}).result_ttl == {"reports": 3600.0, "mails": 90.0}
    assert load({"result_ttl": {"reports": 0}}).result_ttl == {"reports": 0.0}


def test_a_limit_of_0_is_none() -> None:
    assert limits_of(load({"concurrency_limits": "default=0", "rate_limits": "default=0"})) == Limits()


def test_a_limit_for_a_queue_that_is_not_served_is_told_and_does_no_harm() -> None:
    pool = load({"queues": "reports,mails", "rate_limits": "report=4"})
    [said] = unserved_limits(pool, pool.queue_names)
    assert said == "rate_limits limits queue 'report', which this pool does not serve; it serves 'reports', 'mails'"
    pool = load({"rate_limits": "reports=4"})
    assert not unserved_limits(pool, ["reports"])
    assert not unserved_limits(pool, []), "which queues the app names is not known yet"
