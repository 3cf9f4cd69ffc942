"""The look-ahead on simulated time: a pool that finishes jobs, and nothing that sleeps."""

from __future__ import annotations

import pytest

from jobpool.policy.lookahead import CAP, LookAhead

START = 5000.0


def stream(ahead: LookAhead, rate: float, start: float, seconds: float, batch: float = 0.001) -> float:
    """Jobs that end at `rate` a second, told in batches; returns the time after it."""
    told = 0
    for step in range(1, round(seconds / batch) + 1):
        due = round(rate * step * batch)
        ahead.finished(due - told, start + step * batch, busy=0.0)
        told = due
    return start + seconds


def workers(ahead: LookAhead, count: int, job: float, start: float, seconds: float) -> tuple[float, list[int]]:
    """`count` children in step, each job `job` seconds long; the time after it, and the sizes seen when idle."""
    sizes = []
    now = start
    for _ in range(round(seconds / job)):
        now += job
        ahead.finished(count, now, busy=count * job)
        sizes.append(ahead.size(now))
    return now, sizes


def staggered(ahead: LookAhead, count: int, job: float, start: float, seconds: float) -> list[int]:
    """`count` children that take turns in finishing; the sizes after each job."""
    sizes = []
    for step in range(1, round(seconds * count / job) + 1):
        now = start + step * job / count
        ahead.finished(1, now, busy=job)
        sizes.append(ahead.size(now))
    return sizes


def test_it_starts_from_nothing() -> None:
    assert LookAhead(START).size(START) == 0
    assert LookAhead(START).size(START + 100) == 0


def test_a_stream_of_no_op_jobs_reaches_hundreds_within_100_ms() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.1)
    assert ahead.size(now) >= 200


def test_a_stream_of_no_op_jobs_settles_at_20_ms_of_work() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 1.0)
    assert 350 <= ahead.size(now) <= 400


def test_it_at_most_doubles_from_window_to_window() -> None:
    ahead = LookAhead(START)
    now, before = START, 0
    for _ in range(40):
        now = stream(ahead, 30_000, now, 0.01)
        size = ahead.size(now)
        assert size <= max(1, 2 * before)
        before = size


@pytest.mark.parametrize("run", [lambda *a: workers(*a)[1], staggered], ids=["in step", "taking turns"])
def test_20_ms_jobs_on_2_workers_settle_at_2(run: object) -> None:
    ahead = LookAhead(START)
    sizes = run(ahead, 2, 0.02, START, 2.0)  # type: ignore[operator]
    assert set(sizes[20:]) <= {1, 2, 3}
    assert sum(sizes[20:]) / len(sizes[20:]) == pytest.approx(2, abs=0.5)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_1_s_jobs_settle_at_0_even_when_they_end_together(count: int) -> None:
    ahead = LookAhead(START)
    now, sizes = workers(ahead, count, 1.0, START, 10.0)
    assert sizes[1:] == [0] * 9
    assert [ahead.size(now + later / 1000) for later in range(0, 200, 5)] == [0] * 40


def test_it_shrinks_at_once_when_jobs_get_long() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3)
    assert ahead.size(now + 0.021) == 0


def test_it_follows_a_change_from_no_op_to_20_ms_jobs_within_40_ms() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3)
    now, _ = workers(ahead, 2, 0.02, now, 0.04)
    assert ahead.size(now) <= 4


def test_one_long_job_among_a_stream_changes_little() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3)
    ahead.finished(1, now, busy=1.0)
    assert ahead.size(now) >= 350


def test_restart_begins_again_from_nothing() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3)
    ahead.restart(now)
    assert ahead.size(now) == 0
    now = stream(ahead, 20_000, now, 0.03)
    assert ahead.size(now) <= 4
    now = stream(ahead, 20_000, now, 0.08)
    assert ahead.size(now) >= 200


def test_it_forgets_while_the_pool_is_idle() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3) + 3600
    assert ahead.size(now) == 0
    ahead.finished(500, now)
    assert ahead.size(now) <= 1


def test_it_is_capped() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 1_000_000, START, 0.5)
    assert ahead.size(now) == CAP


def test_a_cap_of_0_switches_it_off() -> None:
    ahead = LookAhead(START, cap=0)
    assert ahead.size(stream(ahead, 20_000, START, 0.5)) == 0
