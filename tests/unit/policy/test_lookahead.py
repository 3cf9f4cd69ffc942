"""The look-ahead on simulated time: a pool that finishes jobs, and nothing that sleeps."""

from __future__ import annotations

import math

import pytest

from jobpool.policy.lookahead import (
    CHILDREN_A_HANDLER,
    MAX_GROWTH,
    MAX_LOOKAHEAD,
    MAX_QUICK_S,
    QUICK_RUN_S,
    VIEW_S,
    LookAhead,
)

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


@pytest.mark.parametrize(
    ("rate", "seconds", "later", "least", "most"),
    [
        pytest.param(20_000, 0.06, 0.0, 200, MAX_LOOKAHEAD, id="no-op jobs: hundreds within 60 ms"),
        pytest.param(10_000, 1.0, 0.0, 540, 600, id="very short jobs: 60 ms of work"),
        pytest.param(1_000_000, 0.5, 0.0, MAX_LOOKAHEAD, MAX_LOOKAHEAD, id="capped"),
        pytest.param(20_000, 0.3, 0.021, 0, 0, id="none at once when jobs get long"),
        pytest.param(20_000, 0.3, 3600.0, 0, 0, id="none after an idle hour"),
    ],
)
def test_what_is_held_after_a_stream(rate: float, seconds: float, later: float, least: int, most: int) -> None:
    ahead = LookAhead(START)
    now = stream(ahead, rate, START, seconds) + later
    assert least <= ahead.size(now) <= most


def test_it_grows_fourfold_at_most_from_window_to_window() -> None:
    ahead = LookAhead(START)
    now, before = START, 0
    for _ in range(40):
        now = stream(ahead, 30_000, now, 0.01)
        size = ahead.size(now)
        assert size <= max(1, MAX_GROWTH * before)
        before = size


@pytest.mark.parametrize("run", [lambda *a: workers(*a)[1], staggered], ids=["in step", "taking turns"])
@pytest.mark.parametrize(("job", "size"), [(0.005, 24), (0.01, 12), (0.02, 6), (0.05, 2)])
def test_2_workers_hold_60_ms_of_longer_jobs(run: object, job: float, size: int) -> None:
    ahead = LookAhead(START)
    sizes = run(ahead, 2, job, START, 4.0)  # type: ignore[operator]
    assert sum(sizes[40:]) / len(sizes[40:]) == pytest.approx(size, abs=1.0)
    assert max(sizes[40:]) <= size + 2


@pytest.mark.parametrize(("job", "linger"), [(0.0001, 0.01), (0.005, 0.01), (0.01, 0.02), (0.02, 0.03), (0.07, 0.03)])
def test_an_ack_may_wait_for_half_of_what_the_second_view_covers(job: float, linger: float) -> None:
    ahead = LookAhead(START)
    assert ahead.linger == VIEW_S / 2
    workers(ahead, 2, job, START, 2.0)
    assert ahead.linger == pytest.approx(linger)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_1_s_jobs_settle_at_0_even_when_they_end_together(count: int) -> None:
    ahead = LookAhead(START)
    now, sizes = workers(ahead, count, 1.0, START, 10.0)
    assert sizes[1:] == [0] * 9
    assert [ahead.size(now + later / 1000) for later in range(0, 200, 5)] == [0] * 40


def test_it_follows_a_change_from_no_op_to_20_ms_jobs_within_40_ms() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3)
    now, _ = workers(ahead, 2, 0.02, now, 0.04)
    assert ahead.size(now) <= 12
    now, _ = workers(ahead, 2, 0.02, now, 0.06)
    assert ahead.size(now) <= 6


def test_one_long_job_among_a_stream_changes_little() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3)
    ahead.finished(1, now, busy=1.0)
    assert ahead.size(now) >= 350


def test_a_pause_behind_long_jobs_is_not_a_beginning() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 2_000, START, 0.3)
    assert ahead.size(now + 0.045) == 0
    ahead.finished(10, now + 0.045)
    assert ahead.size(now + 0.045) == 30


@pytest.mark.parametrize("count", [2, 16])
def test_of_jobs_of_100_ms_none_is_held_so_that_an_urgent_one_is_next(count: int) -> None:
    assert set(staggered(LookAhead(START), count, 0.1, START, 3.0)[count:]) == {0}


def test_it_forgets_while_the_pool_is_idle() -> None:
    ahead = LookAhead(START)
    now = stream(ahead, 20_000, START, 0.3) + 3600
    ahead.finished(500, now)
    assert ahead.size(now) <= 1


# --- a broker that is far away --------------------------------------------------------------------------------------


FAR = (0.0005, 0.004, 0.01, 0.02)


def far_away(children: int, job: float, trip: float, seconds: float) -> tuple[int, float]:
    """Jobs that a pool finishes whose fetches, one at a time, take `trip` seconds; and the longest wait for a child."""
    ahead = LookAhead(START)
    now, step, arriving, arrives = START, 0.0005, 0, 0.0
    waiting: list[float] = []  # since when
    running = [0.0] * children  # until when
    done, longest = 0, 0.0
    while now < START + seconds:
        now += step
        for child, until in enumerate(running):
            if until and until <= now:
                running[child] = 0.0
                done += 1
                ahead.finished(1, now, busy=job)
        if arriving and now >= arrives:
            waiting += [now] * arriving
            arriving = 0
            ahead.broker_took(trip)
        for child, until in enumerate(running):
            if not until and waiting:
                longest = max(longest, now - waiting.pop(0))
                running[child] = now + job
        room = running.count(0.0) + ahead.size(now) - len(waiting)
        if not arriving and room > 0:
            arriving, arrives = room, now + trip
    return done, longest


@pytest.mark.parametrize(
    ("children", "job", "trip", "share"),
    [
        *((children, job, trip, 0.8) for children, job in ((2, 0.01), (16, 0.01), (4, 0.002)) for trip in FAR),
        pytest.param(16, 0.01, 0.04, 0.6, id="very far away, it slows a stream a little"),
    ],
)
def test_a_far_broker_does_not_slow_a_stream(children: int, job: float, trip: float, share: float) -> None:
    done, longest = far_away(children, job, trip, 4.0)
    assert done >= share * 4.0 * children / job
    assert longest < 0.1, "what has not begun 100 ms after its lease goes back"


def test_a_few_long_jobs_are_held_where_each_fetch_would_delay_one() -> None:
    ahead = LookAhead(START)
    for _ in range(40):
        ahead.broker_took(0.01)
    assert min(staggered(ahead, 16, 0.1, START, 3.0)[32:]) >= 4


def test_long_jobs_are_not_hoarded_however_far_the_broker_is() -> None:
    ahead = LookAhead(START)
    for _ in range(20):
        ahead.broker_took(0.06)
    _, sizes = workers(ahead, 16, 1.0, START, 20.0)
    assert sizes == [0] * 20


def test_a_near_broker_is_not_counted() -> None:
    near, plain = LookAhead(START), LookAhead(START)
    for _ in range(20):
        near.broker_took(0.06)
    for _ in range(40):
        near.broker_took(0.001)
    stream(near, 2_000, START, 1.0)
    now = stream(plain, 2_000, START, 1.0)
    assert near.size(now) == plain.size(now)


# --- how many children share it -------------------------------------------------------------------------------------

CORES = 2


def children_of(rate: float, run: float, seconds: float = 0.2) -> float:
    """Return how many children get what is held, while jobs that run for `run` seconds end at `rate` a second."""
    ahead, batch = LookAhead(START, cores=CORES), 0.001
    now = START
    for step in range(1, round(seconds / batch) + 1):
        now = START + step * batch
        ahead.finished(round(rate * batch), now, busy=rate * batch * run)
    return ahead.children(now)


def test_a_stream_of_quick_jobs_goes_to_as_many_children_as_keep_the_cores_busy_and_a_few_more() -> None:
    running = 20_000 * 0.00002
    assert children_of(20_000, 0.00002) == CORES + math.ceil(CHILDREN_A_HANDLER * running)


def test_quick_jobs_that_wait_go_to_more_children() -> None:
    assert children_of(20_000, 0.00002) < children_of(20_000, 0.0002) < math.inf


@pytest.mark.parametrize("run", [QUICK_RUN_S * 1.01, 0.0004, 0.002, 0.02])
def test_jobs_that_are_worth_a_wake_up_go_to_all_children(run: float) -> None:
    assert children_of(5_000, run) == math.inf


def children_of_mix(runs: list[tuple[int, float]]) -> float:
    """Return how many share a stream of which each millisecond ends these: how many, and seconds of each."""
    ahead = LookAhead(START, cores=CORES)
    now = START
    for _ in range(300):
        now += 0.001
        for count, seconds in runs:
            ahead.finished(count, now, count * seconds, count * min(seconds, MAX_QUICK_S))
    return ahead.children(now)


def test_quick_jobs_of_which_some_wait_for_a_core_still_go_to_few() -> None:
    mix = [(8, 0.00002), (2, 0.003)]
    assert sum(count * seconds for count, seconds in mix) / 10 > QUICK_RUN_S
    assert children_of_mix(mix) <= CORES + math.ceil(CHILDREN_A_HANDLER * 2 * 3.1)


def test_quick_jobs_go_to_all_children_where_more_than_half_of_all_jobs_last() -> None:
    assert children_of_mix([(4, 0.00002), (6, 0.005)]) == math.inf


def test_nothing_is_known_of_children_before_a_stream_and_after_it() -> None:
    ahead = LookAhead(START, cores=CORES)
    assert ahead.children(START) == math.inf
    now = stream(ahead, 20_000, START, 0.1)
    assert ahead.children(now) < math.inf
    assert ahead.children(now + 1.0) == math.inf
