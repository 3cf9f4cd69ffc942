"""The verbs by which a person controls queues and pools, on a SQLite file or with a lent key store."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from support.modest import Modest

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.client.jobs import Jobs
from jobpool.errors import ConfigurationError, Unsupported
from jobpool_backends.memory import MemoryBackend

Jobpool = Callable[..., Result]


def test_a_pause_shows_in_stats_and_doctor_until_it_is_resumed(jobpool: Jobpool, broker: QueueBackend) -> None:
    result = jobpool("pause", "reports", "mails", "--reason", "disk full", "--until", "2h")
    assert result.exit_code == 0
    assert "reports is paused until 20" in result.stdout
    [mails, reports] = json.loads(jobpool("stats", "--json").stdout)
    assert (mails["queue"], reports["queue"], reports["paused"]["reason"]) == ("mails", "reports", "disk full")
    assert reports["paused"]["until"] - reports["paused"]["since"] == pytest.approx(7200.0)
    assert "disk full" in jobpool("stats").stdout
    found = json.loads(jobpool("doctor", "--json").stdout)["findings"]
    assert [one["mend"] for one in found if one["check"] == "broker.paused"] == [
        "jobpool resume mails",
        "jobpool resume reports",
    ]
    result = jobpool("resume", "reports", "mails", "nothing")
    assert (result.exit_code, result.stdout) == (0, "reports is resumed\nmails is resumed\n")
    assert "nothing was not paused" in result.stderr
    assert control.read(broker).paused == {}


@pytest.mark.parametrize("until", ["tomorrow", "2026-07-01T08:00", "-5", "2020-01-01T00:00Z"])
def test_an_end_that_says_nothing_is_wrong_usage(jobpool: Jobpool, broker: QueueBackend, until: str) -> None:
    assert jobpool("pause", "reports", f"--until={until}").exit_code == 2 or broker is None
    assert control.read(broker).paused == {}


def test_jobs_pause_and_resume(broker: QueueBackend) -> None:
    with Jobs(backend=broker) as jobs:
        assert jobs.pause("reports", "later", until=60).reason == "later"
        assert control.read(broker).paused.keys() == {"reports"}
        assert (jobs.resume("reports"), jobs.resume("reports")) == (True, False)


def test_a_broker_without_keys_is_refused_and_a_lent_store_helps(tmp_path: Path) -> None:
    with closing(Modest()) as backend:
        with pytest.raises(Unsupported, match="state=URL"):
            control.pause(backend, "reports")
        assert not backend.has_control
        backend.lend(open_backend(f"sqlite:///{tmp_path}/state.db"))
        control.pause(backend, "reports")
        assert control.read(backend).paused.keys() == {"reports"}


def test_a_state_is_for_brokers_without_keys_and_has_some_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="keeps keys of its own"):
        open_backend(f"sqlite:///{tmp_path}/jobs.db?state=memory://")
    with closing(Modest()) as backend, closing(Modest()) as other, pytest.raises(ConfigurationError, match="as state"):
        backend.lend(other)
    assert MemoryBackend().has_control


def test_pools_are_listed_drained_and_resumed(jobpool: Jobpool, broker: QueueBackend) -> None:
    assert "no pool has a record" in jobpool("pools").stderr
    facts = {"host": "far", "pid": 7, "version": "1", "state": "running", "queues": ["a", "b"], "lease_margin": None}
    control.tell(broker, control.PoolRecord(id="0a1b", name="night", children=2, busy=1, started=1.0, **facts))  # type: ignore[arg-type]
    [pool] = json.loads(jobpool("pools", "--json").stdout)
    assert (pool["id"], pool["host"], pool["queues"], pool["silent"]) == ("0a1b", "far", ["a", "b"], False)
    assert "0a1b  night  far" in jobpool("pools", "list").stdout
    assert jobpool("pools", "drain", "0a1b").stdout == "0a1b is drained\n"
    assert control.read(broker).drained == {"0a1b"}
    assert jobpool("pools", "resume", "0a1b").stdout == "0a1b is resumed\n"
    assert "0a1b was not drained" in jobpool("pools", "resume", "0a1b").stderr
    result = jobpool("pools", "drain", "nobody")
    assert (result.exit_code, "`jobpool pools` lists them" in result.stderr) == (1, True)
