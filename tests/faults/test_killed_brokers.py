"""A broker that is killed under load and comes back, or stands still (row 8)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.faultmoves import Figure, end_unharmed, gated, let_pass, seconds_until_gone, start_pools, stop_all
from support.faultrig import fault_rig
from support.outages import (
    BACK,
    IDLE_CPU,
    NO_ANSWER,
    OUTAGE,
    Producer,
    complaints,
    costing,
    wait_back,
    wait_begun_after,
)
from support.poolrig import PoolProcess, Rig
from support.poolrig_brokers import BeanstalkBroker, Broker, ClusterBroker, RedisBroker
from support.servers import RedisServer
from support.waiting import wait_until

from jobpool.broker import control
from jobpool.master.settle_thread import COUNT_EVERY_S
from jobpool.ops.health import look
from jobpool.policy.lookahead import HELD_S
from jobpool.telemetry.history.places import HistoryFile
from jobpool.telemetry.metrics.rollup import HOUR, rollups

KILLS = 3
BEHIND = 2.0
"""Seconds that Redis may be behind in writing to the kernel, with `appendfsync everysec` and a disk that lags."""


# --- a broker that keeps what it has answered ---------------------------------------------------------------


@pytest.mark.row(8, 27)
@pytest.mark.on("postgres", "redis", "redis-cluster")
@pytest.mark.own_server
def test_a_broker_that_is_killed_under_load_and_comes_back(broker: Broker, rig: Rig, figure: Figure) -> None:
    """And then restarted as an administrator does."""
    histories = [f"file:history{number} keep=5000" for number in (1, 2)]
    pools = [rig.start_pool("--metrics", "0", "--history", history, timeout=1) for history in histories]
    for pool in pools:
        pool.wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 150)
    long = rig.enqueue("work", {"seconds": OUTAGE / 2}, priority=1)
    with Producer(rig, every=0.05).running() as producer:
        rig.wait_started(long)
        wait_until(lambda: len(rig.ends()) > 50)
        broker.server.kill()
        with costing(pools) as cost:
            told = wait_back(lambda: not any(pool.is_healthy() for pool in pools), "health tells", OUTAGE + BACK)
            figure("health tells after", told, "s")
        assert cost.cpu < IDLE_CPU * max(OUTAGE, cost.seconds), "no busy loop"
        assert not cost.flood(), "and no flood of its log"
        assert cost.told[NO_ANSWER] <= 1, "an outage is told once"
        figure("CPU of a master a second of outage", cost.cpu / cost.seconds * 1000, "ms")
        for pool in pools:
            assert_degraded_and_not_dead(pool)
        broker.bring_back()
        back = time.monotonic()
        figure("work goes on after", wait_begun_after(rig, back), "s")
        wait_back(lambda: all(pool.is_healthy() for pool in pools), "and health tells", BACK + COUNT_EVERY_S)
        broker.server.stop()
        broker.bring_back()
        figure("after a restart", wait_begun_after(rig, time.monotonic()), "s")
    assert producer.refused
    end_unharmed(rig, rig.pools)  # every lease outlived the outage
    assert len(rig.starts(long)) == 1
    assert_all_is_counted(rig)


def assert_degraded_and_not_dead(pool: PoolProcess) -> None:
    """What is seen from outside: health names the broker and nothing else, and all but readiness goes on."""
    wait_until(lambda: complaints(pool) - {"reaper"} == {"broker"}, what="health names the broker and nothing else")
    [complaint] = [check for check in look(pool.note()).checks if check.name == "broker"]
    assert "127.0.0.1" in complaint.text
    assert pool.ready() == 2, "its children stay"
    status, text = pool.get("/readyz")
    assert (status, text.startswith("degraded: the broker last answered")) == (503, True)
    assert pool.get("/livez") == (200, "live\n")
    status, scraped = pool.get("/metrics")
    assert status == 200, "a scrape never asks the broker"
    assert 'outcome="succeeded",queue="default"}' in scraped


def assert_all_is_counted(rig: Rig) -> None:
    """Neither metrics nor history have lost a job to the outage."""
    now, ended = time.time(), len(rig.ends())
    rows = rollups(rig.backend.keys, now - HOUR, now + HOUR)
    assert sum(row.outcomes.get("succeeded", 0) for row in rows) == ended
    files = [HistoryFile(rig.directory / f"history{number}", 10_000) for number in (1, 2)]
    assert sum(len(file.read("work", 10_000)) for file in files) == ended


@pytest.mark.row(8)
@pytest.mark.on("redis", "postgres", "redis-cluster", "sqlite")
@pytest.mark.own_server
def test_a_pause_outlasts_a_broker_that_is_killed(broker: Broker | None, rig: Rig) -> None:
    """For a pool that is up then, and for one that starts later; on SQLite, which has no server, for the second."""
    words = ("-Q", "default,other")
    pools = start_pools(rig, 1, *words, timeout=1)
    paused = control.pause(rig.backend, "default", "by the test", until=3600.0)
    wait_until(lambda: pools[0].header().paused, what="its pool knows")
    kept = rig.enqueue_many("work", [{}] * 5)
    if broker is not None:
        broker.server.kill()
        broker.bring_back()
    else:
        pools.pop().stop()
    pools += start_pools(rig, 1, *words, timeout=1)
    free = rig.enqueue_many("work", [{}] * 20, queue="other")
    rig.wait_drained(queue="other")
    assert {line.id for line in rig.starts()} == set(free)
    assert control.read(rig.backend).paused == {"default": paused}
    assert control.resume(rig.backend, "default")
    rig.wait_drained()
    assert {line.id for line in rig.starts()} == {*kept, *free}
    rig.account().assert_once_each()
    stop_all(rig, pools)


# --- one that may not ---------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.row(8)
@pytest.mark.on("redis")
def test_what_kills_take_from_a_redis_that_flushes_every_second(tmp_path: Path, figure: Figure) -> None:
    """A kill takes what had not reached the kernel; a power cut would take up to two seconds more.

    Redis writes to the kernel before it answers, unless an fsync lags: then it may answer for two seconds first.
    """
    server = RedisServer(tmp_path / "server", config={"appendonly": "yes", "appendfsync": "everysec"})
    with server, fault_rig(tmp_path, RedisBroker(server)) as rig:
        start_pools(rig, 2)
        killed, enough = [], 0
        with Producer(rig, every=0.002).running() as producer:
            for _ in range(KILLS):
                enough = len(rig.ends()) + 40
                wait_until(lambda e=enough: len(rig.ends()) > e)  # type: ignore[misc]
                server.kill()
                killed.append(time.monotonic())
                server.start()
                wait_begun_after(rig, time.monotonic())
        rig.wait_drained()
        account = rig.account()
        assert account["GHOST"] == set()
        late = {ident for ident in account["LOST"] if not was_just_answered(producer.answered[ident], killed)}
        assert late == set(), "older than Redis may be behind"
        figure(f"lost by {KILLS} kills with everysec", len(account["LOST"]), "jobs")
        figure("and run again", len(account["DUP"]), "jobs")
        stop_all(rig, rig.pools)


def was_just_answered(at: float, killed: list[float]) -> bool:
    return any(at < moment < at + BEHIND + 0.5 for moment in killed)


# --- a node that stands still -------------------------------------------------------------------------------


@pytest.mark.row(8)
@pytest.mark.on("redis-cluster")
def test_a_node_that_stands_still_is_waited_for(broker: ClusterBroker, rig: Rig, figure: Figure) -> None:
    """To its clients that is a black hole: no proxy can make one there."""
    pools = start_pools(rig, 2, timeout=1)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 200)
    wait_until(lambda: len(rig.ends()) > 20)
    broker.server.pause()
    try:
        let_pass(0.5)  # what was begun has ended, and calls hang
        with costing(pools) as cost:
            let_pass(1.5)
    finally:
        broker.server.resume()
    assert cost.cpu < 0.2, "no busy loop"
    wait_until(broker.is_whole, what="the cluster is whole")
    back = time.monotonic()
    rig.enqueue_many("work", [{}] * 20)  # all the others may be done by now
    figure("work goes on after", wait_begun_after(rig, back), "s")
    end_unharmed(rig, rig.pools)


# --- brokers whose leases are their connections' ------------------------------------------------------------


@pytest.mark.row(8, 27)
@pytest.mark.on("beanstalk")
@pytest.mark.own_server
def test_leases_are_lost_with_a_beanstalkd_that_is_killed_and_nothing_else_is(
    broker: BeanstalkBroker, rig: Rig, figure: Figure
) -> None:
    """With the binlog: the attempts are killed at once, and their messages run again.

    How often a job was reserved is not in the binlog: after it no crash is charged, and fences begin anew.
    """
    pools = start_pools(rig, 2, "--max-crashes", "0", url=broker.host().url)
    seconds, children = 0.02, 4
    rig.enqueue_many("work", [{"seconds": seconds}] * 150)
    back_again = rig.directory / "back again"
    long = [gated(rig, back_again, back_again, priority=1) for _ in range(2)]
    pids = [line.pid for line in rig.wait_started(*long)]
    wait_until(lambda: len(rig.ends()) > 30)
    broker.server.kill()
    figure("attempts are killed after", seconds_until_gone(pids, 1.5), "s")
    wait_until(lambda: any(pool.log("leases ended with their connection to the broker") for pool in pools))
    with costing(pools) as cost:
        let_pass(1.0)
    assert cost.cpu < 0.2, "no busy loop"
    assert not cost.flood(), "and no flood of its log"
    back_again.touch()
    broker.bring_back()
    back = time.monotonic()
    wait_back(lambda: all(len(rig.starts(ident)) >= 2 for ident in long), "redelivered")
    figure("work goes on after", wait_begun_after(rig, back), "s")
    rig.wait_drained()
    account = rig.account()
    assert account["LOST"] | account["GHOST"] | account["ATT"] == set()
    held = round(children * (1 + HELD_S / seconds))  # all of it goes back where both long jobs run in one pool
    assert len(account.excused) <= held, "what its masters were about to give back"
    assert len(account["DUP"]) <= held, "what was done, and not yet settled: on a busy machine several batches"
    assert [len(rig.ends(ident)) for ident in long] == [1, 1]
    wait_until(lambda: sum(pool.header().lost for pool in pools) >= 2)
    stop_all(rig, rig.pools)
