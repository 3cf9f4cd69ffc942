"""Thousands of jobs that fail at once, because something that all of them need is down, and then is not (row 30).

With POOLTEST_FULL=1 the pools run 10,000 of them.
"""

from __future__ import annotations

import os
from typing import Literal

import pytest
from support.changing_app import an_app
from support.faultmoves import Figure, most_at_once, start_pools, stop_all
from support.poolrig import Rig
from support.waiting import wait_until

from jobpool.broker.values import State
from jobpool.policy.retry import RetryPolicy

CROWD = 10_000
MOMENT = 0.1
"""Seconds: what comes within one is a burst."""

Jitter = float | Literal["full"]


def busiest(times: list[float], window: float) -> int:
    """The most that come within so many seconds, wherever those begin."""
    times = sorted(times)
    most = first = 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


def policy(jitter: Jitter) -> RetryPolicy:
    """The preset `exponential`, with another jitter."""
    return RetryPolicy("exponential", base=0.2, max_delay=5.0, jitter=jitter, seed=7)


def due_after(retry: RetryPolicy, outage: float) -> list[float]:
    """When each job is tried next, of a crowd that fails at 0 and, in no time, whenever it is tried in the outage."""
    due = []
    for _ in range(CROWD):
        at, number = 0.0, 1
        while (at := at + retry.delay(number)) < outage:
            number += 1
        due.append(at)
    return due


@pytest.mark.row(30)
@pytest.mark.parametrize("jitter", [0.2, 0.5])
@pytest.mark.parametrize("number", [3, 4, 5])
def test_one_wave_of_retries_is_as_wide_as_the_jitter(number: int, jitter: float) -> None:
    retry = policy(jitter)
    wave = [retry.delay(number) for _ in range(CROWD)]
    width = 2 * jitter * policy(0.0).delay(number)
    assert busiest(wave, MOMENT) <= 1.2 * CROWD * MOMENT / width


@pytest.mark.row(30)
def test_at_the_longest_delay_half_a_wave_comes_at_once_unless_jitter_is_full() -> None:
    """No delay is longer than the longest: what jitter would add is cut off there."""
    half, full = ([retry.delay(12) for _ in range(CROWD)] for retry in (policy(0.2), policy("full")))
    assert 0.45 * CROWD < busiest(half, MOMENT) < 0.6 * CROWD
    assert busiest(full, MOMENT) < 1.3 * CROWD * MOMENT / 5.0


@pytest.mark.row(30)
@pytest.mark.parametrize(("jitter", "outage"), [(0.2, 10.0), (0.2, 30.0), ("full", 30.0)])
def test_what_comes_back_after_an_outage_is_spread(jitter: Jitter, outage: float, figure: Figure) -> None:
    share = busiest(due_after(policy(jitter), outage), MOMENT) / CROWD
    figure("the busiest 0.1 s after an outage has", share * 100, "% of the crowd")
    assert share < 0.1


# --- pools ------------------------------------------------------------------------------------------------------------

JOBS = 10_000 if os.environ.get("POOLTEST_FULL") else 200
WORKERS = 2
TAKES = 0.05
"""Seconds that a job runs when nothing is down: what pools can run of them is far less than the crowd."""

BURST = 0.18
"""Share of the crowd that may be due within a moment: the first retry comes after 1 to 3 s, so that is a twentieth, and
what chance adds to 200. Without jitter it is what fails in a moment: about a third, where 200 take 0.3 s."""

NEEDS = """
@jobpool.handler
def needs(ctx, down, seconds):
    note(ctx, "start")
    if os.path.exists(down):
        note(ctx, "fail")
        raise ConnectionError("it is down")
    time.sleep(seconds)
    note(ctx, "end")
"""


@pytest.mark.row(30)
def test_pools_start_no_more_after_the_recovery_than_they_can_run(rig: Rig, figure: Figure) -> None:
    down = rig.directory / "down"
    down.touch()
    app = str(an_app(rig, extra=NEEDS))
    flags = ("--retry", "exponential base=2s max=60s jitter=0.5")
    pools = start_pools(rig, 2, *flags, workers=WORKERS, app=app)
    rig.enqueue_many("needs", [{"down": str(down), "seconds": TAKES}] * JOBS, max_retries=1000)
    wait_until(lambda: len({line.id for line in rig.lines("fail")}) == JOBS, 90 + JOBS / 20, "all have failed")
    wait_until(lambda: rig.stats().leased < 0.1 * JOBS, what="what has failed is given back")
    due = [message.available_at for message in rig.kept() if message.state is not State.LEASED]
    figure("the busiest 0.1 s has, of the crowd that is down", 100 * busiest(due, MOMENT) / JOBS, "%")
    assert len(due) > 0.8 * JOBS, "nearly all of them wait for a retry"
    assert busiest(due, MOMENT) < BURST * JOBS
    down.unlink()
    recovered = max(line.at for line in rig.lines("fail"))
    rig.wait_drained(90 + JOBS / 20)

    after = [line.at for line in rig.starts() if line.at >= recovered]
    capacity = len(pools) * WORKERS / TAKES
    most = busiest(after, 1.0)
    figure("starts in the busiest second, of the capacity", most / capacity, "")
    assert most <= 2 * capacity < JOBS
    assert most_at_once(line for line in rig.lines() if line.at >= recovered) <= len(pools) * WORKERS
    assert len(rig.ends()) == JOBS
    rig.account().assert_once_each()
    assert not rig.dead()
    stop_all(rig, pools)
