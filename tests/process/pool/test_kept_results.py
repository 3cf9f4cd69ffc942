"""Results through a real pool: kept with the ack, masked by the child, and heard of by who waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.poolrig import Rig
from support.waiting import wait_until

from jobpool.client.jobs import Jobs
from jobpool.errors import JobFailed, ResultNotKept, ResultTooLarge
from jobpool.message.results import JobState

LIMIT = 60.0
APP = """
import pathlib
import time
import jobpool

@jobpool.handler("bill", result_ttl=600)
def bill(ctx, customer):
    return {"customer": customer, "password": "hidden", "paid": None}

@jobpool.handler("nothing", result_ttl=600)
def nothing(ctx): pass

@jobpool.handler("large", result_ttl=600)
def large(ctx): return "x" * 100_000

@jobpool.handler("fails", result_ttl=600)
def fails(ctx): raise ValueError("boom")

@jobpool.handler("plain")
def plain(ctx): return 7

@jobpool.handler("long")
def long(ctx, until):
    ctx.progress(0.5, "half")
    while not pathlib.Path(until).exists():
        time.sleep(0.01)
"""


@pytest.fixture
def jobs(rig: Rig, tmp_path: Path) -> Jobs:
    (tmp_path / "apps_results.py").write_text(APP)
    rig.start_pool(workers=2, app=tmp_path / "apps_results.py").wait_ready(2)
    return Jobs(backend=rig.backend)


@pytest.mark.brokers
def test_who_waits_gets_what_the_handler_returned(jobs: Jobs) -> None:
    first = jobs.define("bill", {"customer": 7}).dispatch()
    nothing = jobs.define("nothing").dispatch()
    asked = jobs.define("plain").result_ttl(600).dispatch()
    refused = jobs.define("bill", {"customer": 8}).result_ttl(0).dispatch()
    assert first.result(LIMIT) == {"customer": 7, "password": "***", "paid": None}
    assert (nothing.result(LIMIT), asked.result(LIMIT)) == (None, 7)
    assert (first.status().state, first.status().handler) == (JobState.DONE, "bill")
    with pytest.raises(ResultNotKept):
        refused.result(LIMIT)


@pytest.mark.brokers
def test_a_queue_keeps_the_results_of_jobs_that_do_not_say(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "apps_results.py").write_text(APP)
    flags = ("--queue", "kept", "--queue", "other", "--result-ttl", "kept=10m")
    rig.start_pool(*flags, workers=2, app=tmp_path / "apps_results.py").wait_ready(2)
    jobs = Jobs(backend=rig.backend)
    kept = jobs.define("plain").queue("kept").dispatch()
    said = jobs.define("plain").queue("kept").result_ttl(0).dispatch()
    other = jobs.define("plain").queue("other").dispatch()
    assert kept.result(LIMIT) == 7
    for handle in (said, other):
        with pytest.raises(ResultNotKept):
            handle.result(LIMIT)


@pytest.mark.brokers
def test_what_has_no_result_says_why(jobs: Jobs) -> None:
    large, fails = jobs.define("large").dispatch(), jobs.define("fails").dispatch()
    with pytest.raises(ResultTooLarge, match="100002 bytes"):
        large.result(LIMIT)
    with pytest.raises(JobFailed, match="ValueError: boom"):
        fails.result(LIMIT)
    assert [status.state for status in jobs.wait([large, fails], LIMIT)] == [JobState.DONE, JobState.DEAD]


@pytest.mark.brokers
def test_a_long_job_tells_where_it_runs_and_how_far(jobs: Jobs, tmp_path: Path) -> None:
    done = tmp_path / "done"
    handle = jobs.define("long", {"until": str(done)}).dispatch()
    wait_until(lambda: handle.status().progress == 0.5, LIMIT, "its progress is told")
    status = handle.status()
    assert (status.state, status.note) == (JobState.RUNNING, "half")
    assert status.where
    assert status.since
    done.touch()
    [ended] = jobs.wait([handle], LIMIT)
    assert ended.state is JobState.UNKNOWN, "it keeps no result"
