"""Results through a real pool: kept with the ack, masked by the child, and heard of by who waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.poolrig import LIMIT, Rig
from support.waiting import wait_until

from jobpool.client.jobs import Jobs
from jobpool.errors import JobFailed, ResultNotKept, ResultTooLarge
from jobpool.message.results import JobState

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


@pytest.mark.brokers
def test_who_waits_gets_the_result_or_why_there_is_none(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "apps_results.py").write_text(APP)
    rig.start_pool("-Q", "default,kept", "--result-ttl", "kept=10m", app=tmp_path / "apps_results.py").wait_ready(2)
    jobs = Jobs(backend=rig.backend)
    first, nothing = jobs.define("bill", {"customer": 7}).dispatch(), jobs.define("nothing").dispatch()
    asked, of_queue = jobs.define("plain").result_ttl(600), jobs.define("plain").queue("kept")
    answers = [handle.result(LIMIT) for handle in (first, nothing, asked.dispatch(), of_queue.dispatch())]
    assert answers == [{"customer": 7, "password": "***", "paid": None}, None, 7, 7]
    assert (first.status().state, first.status().handler) == (JobState.DONE, "bill")

    refused = jobs.define("bill", {"customer": 8}).result_ttl(0)
    for not_kept in (refused, jobs.define("plain"), of_queue.result_ttl(0)):
        handle = not_kept.dispatch()
        with pytest.raises(ResultNotKept):
            handle.result(LIMIT)
    large, fails = jobs.define("large").dispatch(), jobs.define("fails").dispatch()
    with pytest.raises(ResultTooLarge, match="100002 bytes"):
        large.result(LIMIT)
    with pytest.raises(JobFailed, match="ValueError: boom"):
        fails.result(LIMIT)
    assert [status.state for status in jobs.wait([large, fails], LIMIT)] == [JobState.DONE, JobState.DEAD]

    done = tmp_path / "done"
    long = jobs.define("long", {"until": str(done)}).dispatch()
    wait_until(lambda: long.status().progress == 0.5, LIMIT, "its progress is told")
    status = long.status()
    assert (status.state, status.note) == (JobState.RUNNING, "half")
    assert status.where
    assert status.since
    done.touch()
    [ended] = jobs.wait([long], LIMIT)
    assert ended.state is JobState.UNKNOWN, "it keeps no result"
