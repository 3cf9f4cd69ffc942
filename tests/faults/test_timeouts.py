"""The hard timeout over two pools, whatever the handler does against it: how late a kill is, and what it costs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence

import pytest
from support.apps_pool import HANGS, IN_C
from support.faultmoves import Figure, start_pools, stop_all
from support.faultrig import broker_of_file, rig_of_file
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child, wait_gone
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.master.deadlines import MAX_DUMP_S

pytestmark = pytest.mark.xdist_group("fault-timeouts")  # two pools for all of them

TIMEOUT = 0.5
LARGE = "hang_in_zlib"
"""It has 600 MiB to build before it is in C."""

GRACE = 0.7
"""Seconds: a loop in C takes a core all the while. After it the loop needs one for a moment, to write its stack."""

SLACK = 0.5
"""Seconds from timeout + grace to the death, and to the settlement of its message, and to a successor."""

ROUNDS = 10 if os.environ.get("POOLTEST_FULL") else 1

WORKERS = 2

FREEING = 0.5
"""Seconds more for those 600 MiB: the kernel takes tenths of a second of a core to free them, and others want it."""

BY_ALARM = ("hang_in_sleep", "hang_in_lock", "hang_in_read", "hang_in_subprocess", "swallow_exception")
"""What the alarm ends, so that no kill is needed."""


broker, rig = broker_of_file, rig_of_file


@pytest.fixture(scope="module")
def pools(rig: Rig) -> Iterator[list[PoolProcess]]:
    """Tests leave them as they find them, however badly their jobs behave."""
    pools = start_pools(rig, 2, "--kill-grace", str(GRACE), "--metrics", "0", workers=WORKERS)
    yield pools
    rig.account().assert_clean()
    stop_all(rig, pools)


def ended_after(rig: Rig, ident: str) -> float:
    """Seconds from the first line of its last attempt to where its settlement was asked for."""
    return rig.lines("asked", ident)[-1].at - rig.starts(ident)[-1].at


def wait_replaced(pools: Sequence[PoolProcess]) -> float:
    """The time at which every slot has a child that is ready."""
    for pool in pools:
        pool.wait_ready(WORKERS)
    return time.monotonic()


def overruns(pools: Sequence[PoolProcess]) -> tuple[float, float]:
    """Of all kills at a timeout so far, by the pools' own measure: their seconds after the timeout, and their count."""
    return sum(_metric(pool, "sum") for pool in pools), sum(_metric(pool, "count") for pool in pools)


def _metric(pool: PoolProcess, what: str) -> float:
    found = re.search(rf"^jobpool_kill_overrun_seconds_{what} (\S+)$", pool.get("/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.row(10)
@pytest.mark.on("sqlite")
def test_a_loop_in_c_is_killed_and_replaced_in_time(rig: Rig, pools: list[PoolProcess], figure: Figure) -> None:
    """`POOLTEST_FULL` does all of it ten times."""
    for how in IN_C * ROUNDS:
        times = (TIMEOUT, 4 * TIMEOUT, 16 * TIMEOUT, 64 * TIMEOUT)  # a busy machine takes long to come into C
        assert any(is_killed_in_time(rig, pools, how, timeout, figure) for timeout in times), how


def is_killed_in_time(rig: Rig, pools: list[PoolProcess], how: str, timeout: float, figure: Figure) -> bool:
    """False: it was not in C yet when its alarm came, which ended it."""
    before = overruns(pools)
    with Stalls() as stalls:
        ident = rig.enqueue("hang", {"how": how}, timeout=timeout)
        [begun] = rig.wait_started(ident)
        wait_until(lambda: rig.is_dead(ident), LIMIT)
        replaced = wait_replaced(pools) - begun.at - timeout - GRACE
    late = ended_after(rig, ident) - timeout - GRACE
    said, count = (after - old for after, old in zip(overruns(pools), before, strict=True))
    if count == 0:
        return False
    assert count == 1
    figure(f"killed and settled after timeout + grace, {how.removeprefix('hang_in_')}", late, "s")
    overrun = said - GRACE
    figure("killed after timeout + grace, by the pools' own measure", overrun, "s")
    figure("killed, settled and replaced after timeout + grace", replaced, "s")
    assert overrun > 0.0
    bound = SLACK + (FREEING if how == LARGE else 0.0) + stalls.allowance
    assert max(late, replaced) < bound, (how, late, replaced, stalls.seconds)
    assert_failed_once(rig, ident)
    assert_named(rig, ident, how, timeout, has_stack=overrun < MAX_DUMP_S)
    return True


def assert_failed_once(rig: Rig, ident: str) -> None:
    """It was its only attempt, no crash, and the dead letter says why."""
    message = rig.inspect(ident)
    assert [(line.attempt, line.crashes) for line in rig.starts(ident)] == [(1, 0)]
    assert (message.reason, message.crashes) == ("timeout", 0)


def assert_named(rig: Rig, ident: str, how: str, timeout: float, *, has_stack: bool = True) -> None:
    """`has_stack`: the kill waits for a stack for `MAX_DUMP_S` at most, and a busy machine may take longer."""
    error = rig.inspect(ident).last_error or ""
    assert error.startswith(f"Job 'hang' exceeded maximum execution time of {timeout:g} seconds."), error
    assert not has_stack or re.search(rf'File ".*apps_pool\.py", line \d+ in {how}', error), error
    assert "jobpool/child/" not in error, "only the user's own lines"


@pytest.mark.row(10, 11)
@pytest.mark.on("sqlite", "postgres")
def test_a_timeout_burns_an_attempt_and_no_crash(rig: Rig, pools: list[PoolProcess]) -> None:
    """Of what is killed, whether it was in C or in Python."""
    ident = rig.enqueue("hang", {"how": "swallow_everything"}, timeout=TIMEOUT, max_retries=1)
    wait_until(lambda: rig.is_dead(ident))
    first, second = rig.starts(ident)
    assert [(line.attempt, line.crashes) for line in (first, second)] == [(1, 0), (2, 0)]
    assert (rig.inspect(ident).reason, rig.inspect(ident).crashes) == ("timeout", 0)
    wait_gone([first.pid, second.pid], LIMIT)
    wait_replaced(pools)
    rig.wait_started(rig.enqueue("work"))


@pytest.mark.row(11)
@pytest.mark.on("sqlite")
def test_every_way_to_resist_the_alarm_ends_in_time(rig: Rig, pools: list[PoolProcess], figure: Figure) -> None:
    with Stalls() as stalls:
        ids = {how: rig.enqueue("hang", {"how": how}, timeout=TIMEOUT) for how in HANGS if how not in IN_C}
        rig.wait_drained()
    ended = {how: ended_after(rig, ident) for how, ident in ids.items()}
    for how, ident in ids.items():
        assert_failed_once(rig, ident)
        assert how in (rig.inspect(ident).last_error or ""), "the record names the line"
    early = [seconds - TIMEOUT for how, seconds in ended.items() if how in BY_ALARM]
    late = [seconds - TIMEOUT - GRACE for how, seconds in ended.items() if how not in BY_ALARM]
    for seconds in early:
        figure("ended after the timeout where the alarm is met", seconds, "s")
    figure("killed and settled after timeout + grace, the latest", max(late), "s")
    assert max(early) < SLACK + stalls.allowance, (ended, stalls.seconds)
    assert max(late) < SLACK + stalls.allowance, (ended, stalls.seconds)
    wait_replaced(pools)


@pytest.mark.row(10)
@pytest.mark.on("sqlite")
def test_a_hanging_job_makes_no_other_job_late(rig: Rig, pools: list[PoolProcess], figure: Figure) -> None:
    hanging = rig.enqueue("die", {"how": "SIGSTOP"})
    [start] = rig.wait_started(hanging)
    ids = rig.enqueue_many("noop", [{}] * 100) + rig.enqueue_many("work", [{"seconds": 0.005}] * 50)
    wait_until(lambda: rig.stats().pending == 1, LIMIT, "all but the hanging one are done")
    figure(f"{len(ids)} others done beside it", time.monotonic() - start.at, "s")
    assert len([line for line in rig.ends() if line.id in ids]) == 50
    assert len(rig.starts(hanging)) == 1, "its first attempt hangs on"
    assert any(kill_child(pool, start.pid) for pool in pools)
    rig.wait_drained()
    wait_replaced(pools)


@pytest.mark.row(12)
@pytest.mark.on("sqlite", "postgres")
def test_handlers_that_end_at_their_timeout_are_one_thing_or_the_other(
    rig: Rig, pools: list[PoolProcess], figure: Figure
) -> None:
    """Success or timeout, never both, and nothing gets into the next job: those between them have all the time.

    5,000 in one child are in `tests/process/child/test_alarm.py`; here each timeout costs a child.
    """
    timeout = 0.02
    racing, next_ones, overdue = [], [], []
    near = [step * 0.0002 / ROUNDS for step in range(-10 * ROUNDS, 10 * ROUNDS)]
    early = [-timeout * tenth / 10 for tenth in range(2, 11)]  # on a busy machine all that are near come too late
    for beyond in early + near:
        seconds = timeout + beyond
        ids = rig.enqueue_many("work", [{"seconds": seconds}] * 2, timeout=timeout)
        racing += ids
        overdue += ids if beyond > 0 else []
        next_ones += rig.enqueue_many("work", [{"seconds": 0.001}])
    rig.wait_drained()
    dead = {ident: message for ident, message in rig.dead().items() if ident in racing or ident in next_ones}
    assert set(dead) <= set(racing), "nothing leaks into the next job"
    assert set(overdue) <= set(dead), "what sleeps beyond its timeout has no success"
    assert len(dead) < len(racing), "and some have ended before"
    assert {(message.reason, message.crashes) for message in dead.values()} == {("timeout", 0)}
    ended = {line.id for line in rig.ends()}
    assert {*racing, *next_ones} - set(dead) <= ended
    assert all(len(rig.starts(ident)) <= 1 for ident in racing), "none at all: it had no time for its first line"
    assert all(len(rig.starts(ident)) == 1 for ident in next_ones)
    figure("share that timed out", len(dead) / len(racing) * 100, "%")
    wait_replaced(pools)
