"""Leases under strain: long jobs, masters that die or sleep, several pools on one queue."""

from __future__ import annotations

import signal
import time

import pytest
from support.poolrig import PoolProcess, Rig, is_alive, wait_gone
from support.waiting import wait_until

TTL = 1.0
LEASES = ("--ttl", str(TTL), "--max-crashes", "0")


def start_two_pools(rig: Rig, *flags: str, workers: int = 2) -> tuple[PoolProcess, PoolProcess]:
    first, second = (rig.start_pool(*LEASES, *flags, workers=workers) for _ in range(2))
    return first.wait_ready(workers), second.wait_ready(workers)


def runner_of(rig: Rig, ident: str, *pools: PoolProcess) -> tuple[PoolProcess, PoolProcess]:
    """The pool whose child has begun this message, and the other one."""
    [start] = rig.wait_started(ident)
    [running] = [pool for pool in pools if start.pid in pool.children()]
    [other] = [pool for pool in pools if pool is not running]
    return running, other


@pytest.mark.parametrize("handler", ["work", "hold_gil"])
def test_a_job_of_three_times_the_ttl_runs_once(rig: Rig, handler: str) -> None:
    """FAULTS 1."""
    start_two_pools(rig)
    ident = rig.enqueue(handler, {"seconds": 3 * TTL + 0.2})
    rig.wait_drained()
    assert len(rig.starts(ident)) == len(rig.ends(ident)) == 1
    rig.account().assert_once_each()


@pytest.mark.brokers
def test_a_master_killed_under_load_leaves_nothing_alive_and_loses_nothing(rig: Rig) -> None:
    """FAULTS 4."""
    first = rig.start_pool(*LEASES, workers=3).wait_ready(3)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 300)
    long = rig.enqueue_many("work", [{"seconds": 1.5, "tag": "long"}] * 2, priority=1)
    rig.wait_started(*long)
    wait_until(lambda: len(rig.ends()) > 20)
    family = [*first.fork_servers(), *first.children()]
    assert len(family) == 4
    first.stop(signal.SIGKILL)
    killed = time.monotonic()
    wait_gone(family, 1.0)
    rig.assert_no_processes_left(0.5)
    before = {line.id for line in rig.starts()}
    cut_short = before & {message.id for message in rig.backend.list_messages(limit=1000)}

    second = rig.start_pool(*LEASES, workers=3).wait_ready(3)
    there = time.monotonic()  # before that nobody could take them
    wait_until(lambda: all(len(rig.starts(ident)) == 2 for ident in long), what="redelivered")
    assert max(rig.starts(ident)[1].at for ident in long) < max(killed + TTL + TTL / 3 * 1.2, there) + 1.0
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert not account.overlaps
    assert {ident for ident in rig.enqueued if len(rig.starts(ident)) > 1} <= cut_short, "nothing that was settled"
    assert len(before) < 302
    assert second.stop() == 0


@pytest.mark.brokers
def test_a_master_that_slept_past_its_leases_settles_none_of_them_and_goes_on(rig: Rig) -> None:
    """FAULTS 5."""
    pools = start_two_pools(rig)
    ident = rig.enqueue("work", {"seconds": 1.0})
    sleeper, other = runner_of(rig, ident, *pools)
    sleeper.send(signal.SIGSTOP)
    rig.wait_started(ident)
    wait_until(lambda: len(rig.starts(ident)) == 2, what="the other pool has it")
    assert rig.starts(ident)[1].pid in other.children()
    sleeper.send(signal.SIGCONT)
    rig.wait_drained()
    end = rig.directory / "end"
    # As many as both have children, and none ends before all have begun.
    late = rig.wait_started(*rig.enqueue_many("again", [{"first": 0, "later": 0, "until": str(end)}] * 4))
    assert {line.pid for line in late} & set(sleeper.children()), "it goes on"
    end.touch()
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert account.crashes[ident] == 1
    assert sleeper.header().lost >= 1
    assert not rig.dead()
    assert [pool.stop() for pool in pools] == [0, 0]


def test_the_child_of_a_lost_lease_is_killed_and_no_other(rig: Rig) -> None:
    pools = start_two_pools(rig)
    ident = rig.enqueue("work", {"seconds": 6.0})
    sleeper, _ = runner_of(rig, ident, *pools)
    holder = rig.starts(ident)[0].pid
    [bystander] = [pid for pid in sleeper.children() if pid != holder]
    sleeper.send(signal.SIGSTOP)
    wait_until(lambda: len(rig.starts(ident)) == 2, what="the other pool has it")
    sleeper.send(signal.SIGCONT)
    wait_gone([holder], 1.5)
    assert is_alive(bystander)
    sleeper.wait_ready(2)
    assert sleeper.stop() == 0


def test_a_short_pause_of_the_master_costs_nothing(rig: Rig) -> None:
    pools = start_two_pools(rig)
    ident = rig.enqueue("work", {"seconds": 2.0})
    sleeper, _ = runner_of(rig, ident, *pools)
    sleeper.send(signal.SIGSTOP)
    paused = time.monotonic()
    wait_until(lambda: time.monotonic() - paused > TTL / 4)
    sleeper.send(signal.SIGCONT)
    rig.wait_drained()
    assert len(rig.starts(ident)) == 1
    rig.account().assert_once_each()


def test_a_child_that_finished_while_its_master_slept_is_heard_in_time(rig: Rig) -> None:
    pool = rig.start_pool("--ttl", "10").wait_ready(2)
    ident = rig.enqueue("work", {"seconds": 0.3})
    rig.wait_started(ident)
    pool.send(signal.SIGSTOP)
    wait_until(lambda: rig.ends(ident))
    pool.send(signal.SIGCONT)
    rig.wait_drained()
    rig.account().assert_once_each()
    assert pool.stop() == 0


def test_masters_killed_again_and_again(rig: Rig) -> None:
    """Two pools on one queue, one of them killed and started anew five times."""
    stable = rig.start_pool(*LEASES).wait_ready(2)
    for number in range(5):
        victim = rig.start_pool(*LEASES).wait_ready(2)
        family = victim.children()
        gate = rig.directory / f"gate {number}"
        # First one for each child of both: else the other pool might do it all before this one has looked.
        rig.wait_started(*rig.enqueue_many("again", [{"first": 0, "later": 0, "until": str(gate)}] * 4, priority=1))
        rig.enqueue_many("work", [{"seconds": 0.01}] * 200)
        gate.touch()
        wait_until(lambda f=family: {line.pid for line in rig.ends()} & set(f), what="it works")  # type: ignore[misc]
        victim.stop(signal.SIGKILL)
        wait_gone(family, 1.0)
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert not account.overlaps
    assert stable.stop() == 0
    rig.assert_no_processes_left()


def test_descriptors_and_memory_of_the_master_stay_flat(rig: Rig) -> None:
    """FAULTS 23 in short: jobs, children's deaths, growth and shrinkage."""
    pool = rig.start_pool("--max-crashes", "0").wait_ready(2)

    def churn() -> None:
        rig.enqueue_many("work", [{}] * 500)
        rig.enqueue_many("die", [{"how": "SIGKILL"}] * 20)
        rig.wait_drained()
        pool.wait_ready(2)

    churn()
    wait_until(lambda: pool.ready() == 2)
    fds, rss = pool.open_fds(), pool.rss()
    churn()
    churn()
    wait_until(lambda: pool.open_fds() <= fds, 3.0, "descriptors are as before")
    assert pool.rss() - rss < 8 << 20
    assert pool.stop() == 0
