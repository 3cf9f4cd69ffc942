"""Networks between pools and their broker that fail: black holes, resets, half-open connections (row 8)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.faultmoves import (
    Figure,
    end_unharmed,
    gated,
    in_time,
    let_pass,
    seconds_until_gone,
    start_on,
    start_pools,
    stop_all,
)
from support.outages import (
    BACK,
    IDLE_CPU,
    NO_ANSWER,
    OUTAGE,
    complaints,
    costing,
    part,
    wait_back,
    wait_begun_after,
    wait_fetched_after,
)
from support.poolrig import LIMIT, PoolProcess, Rig
from support.poolrig_brokers import SHORT_TTR, Broker
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.broker.values import State

if TYPE_CHECKING:
    from support.poolrig_servicebus import ServiceBusBroker

TTL = 4.5
"""Seconds: those who are not cut off must keep their leases through the pauses of a busy machine."""

HOLE = 30.0 if os.environ.get("POOLTEST_FULL") else 2 * TTL
"""Seconds that a black hole lasts."""

LEASES = ("--ttl", str(TTL), "--max-crashes", "0")
NEVER_GIVEN_UP = ("--max-crashes", "0")
REFUSED = "a settlement was refused"
CUTS = 4
ENDS = 4.0
"""Seconds that leases last which end in an outage: no pause of the machine ends others."""

LONG_LOCK = 30.0
TURNED = "the circuit breaker of a queue has turned"


def start_apart(broker: Broker, rig: Rig, count: int, *flags: str, **options: Any) -> list[PoolProcess]:
    """So many pools, each on a host of its own, all ready."""
    return start_on([broker.host() for _ in range(count)], rig, *flags, **options)


# --- black holes --------------------------------------------------------------------------------------------


@pytest.mark.row(8)
@pytest.mark.on("redis", "postgres")
def test_a_pool_behind_a_black_hole_loses_what_it_holds_and_nobody_else_notices(
    broker: Broker, rig: Rig, figure: Figure
) -> None:
    """Two hosts; one is cut off for two ttls while it holds a job that is done and one that runs."""
    stalls = Stalls()
    hosts = [broker.host() for _ in range(2)]
    lonely = rig.start_pool(*LEASES, url=hosts[0].url).wait_ready(2)
    cut_off, heard = rig.directory / "cut off", rig.directory / "heard"
    done = rig.enqueue("again", {"first": 0.0, "later": 0.1, "until": str(cut_off), "then": str(heard)})
    running = rig.enqueue("again", {"first": 600, "later": 0.1})
    with stalls:
        held = [line.pid for line in rig.wait_started(done, running)]
        others = start_on(hosts[1:], rig, *LEASES)
        begun = time.monotonic()
        hosts[0].proxy.black_hole()
        cut_off.touch()
        feed(rig)
        seconds_until_gone(held[1:], TTL + 1.0)
    # It was renewed a third of it ago at most, or as late as the machine had kept its master waiting.
    assert time.monotonic() - begun > 0.4 * TTL - stalls.allowance, "not before its lease had ended"
    assert rig.ends(done)
    wait_back(lambda: len(rig.starts(running)) == len(rig.starts(done)) == 2, "redelivered", TTL + BACK)
    assert {line.pid for ident in (running, done) for line in rig.starts(ident)[1:]} <= children(*others)
    halfway = settled(*others)
    feed(rig)
    with costing([lonely]) as cost:
        wait_back(lambda: settled(*others) >= halfway + 50, "nobody else notices")
        let_pass(max(2.0, begun + HOLE - time.monotonic()))
    assert cost.cpu < 0.1 + 0.05 * cost.seconds, "no busy loop"

    hosts[0].proxy.restore()
    back = time.monotonic()
    family = set(lonely.children())
    assert not family & set(held[1:])
    # More than the other's children can take at once: something is left for it, however late it comes.
    for _ in range(3):
        gated(rig, heard, priority=1)
    wait_back(lambda: any(line.at > back and line.pid in family for line in rig.starts()), "it works again")
    figure("work goes on after", min(ln.at for ln in rig.starts() if ln.at > back and ln.pid in family) - back, "s")
    message = rig.inspect(done)
    assert (message.state, message.deliveries) == (State.LEASED, 2), "the late ack of the first delivery was refused"
    heard.touch()
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert account["DUP"] <= {done}
    assert [len(rig.starts(ident)) for ident in (done, running)] == [2, 2]
    assert [rig.starts(ident)[1].crashes for ident in (done, running)] == [1, 1]
    assert len([ident for ident in rig.enqueued if len(rig.starts(ident)) > 1]) <= 2 + 4, "and what it had looked ahead"
    wait_until(lambda: lonely.header().lost >= 2)
    assert lonely.log("a lease ended before the broker answered its settlement") or lonely.log(REFUSED)
    stop_all(rig, rig.pools)


def settled(*pools: PoolProcess) -> int:
    """How many jobs these pools have settled."""
    return sum(pool.header().succeeded for pool in pools)


def feed(rig: Rig) -> None:
    """Short jobs for some two seconds."""
    rig.enqueue_many("work", [{"seconds": 0.05}] * 150)


def children(*pools: PoolProcess) -> set[int]:
    return {pid for pool in pools for pid in pool.children()}


@pytest.mark.row(8)
@pytest.mark.on("beanstalk", "servicebus")
@pytest.mark.ttr(SHORT_TTR)
def test_behind_a_black_hole_an_attempt_ends_with_its_lease_and_the_pool_goes_on(
    broker: Broker, rig: Rig, figure: Figure
) -> None:
    """By this machine's clock; nothing that it did is settled. The other pool may get its job before it is back.

    The hole lasts until health tells.
    """
    host = broker.host()
    pool = rig.start_pool("--max-crashes", "0", url=host.url).wait_ready(2)
    back_again = rig.directory / "back again"
    long = gated(rig, back_again, back_again)
    with Stalls() as stalls:
        [line] = rig.wait_started(long)
        start_apart(broker, rig, 1, "--max-crashes", "0")
        host.proxy.black_hole()
        cut = time.monotonic()
        figure("the attempt ends after", seconds_until_gone([line.pid], broker.lasts + 1.5), "s")
    assert time.monotonic() - cut > 0.5 * broker.lasts - stalls.allowance, "not before its lease had ended"
    with costing([pool]) as cost:
        wait_back(lambda: "broker" in complaints(pool), "health tells", OUTAGE + BACK)
    assert cost.cpu < IDLE_CPU * max(OUTAGE, cost.seconds), "no busy loop"
    assert not cost.flood(), "and no flood of its log"
    wait_until(lambda: complaints(pool) <= {"broker", "reaper"}, what="and of nothing else")
    back_again.touch()
    host.proxy.restore()
    back = time.monotonic()
    family = set(pool.children())
    heard = rig.directory / "heard"
    for _ in range(3):  # more than the other's children can take at once, as above
        gated(rig, heard, heard)
    wait_back(lambda: any(line.at > back and line.pid in family for line in rig.starts()), "it works again")
    heard.touch()
    wait_back(lambda: len(rig.starts(long)) >= 2, "redelivered", BACK + broker.lasts)
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert not account["OVERLAP"] | account.excused
    wait_until(lambda: pool.header().lost >= 1)
    stop_all(rig, rig.pools)


# --- connections that end -----------------------------------------------------------------------------------


@pytest.mark.row(8)
@pytest.mark.on("redis", "postgres")
def test_connections_that_are_reset_again_and_again(broker: Broker, rig: Rig) -> None:
    start_apart(broker, rig, 2)
    before = [host.proxy.counts().connections for host in broker.hosts]
    for _ in range(CUTS):
        wait_fetched_after(rig, time.monotonic())
        for host in broker.hosts:
            host.proxy.cut()
    wait_fetched_after(rig, time.monotonic())
    assert all(host.proxy.counts().connections > had for host, had in zip(broker.hosts, before, strict=True))
    end_unharmed(rig, rig.pools)


@pytest.mark.row(8)
@pytest.mark.on("beanstalk", "servicebus")
def test_connections_that_hold_leases_are_reset_and_nothing_is_lost(broker: Broker, rig: Rig) -> None:
    """What was not settled when its lease went runs again, maybe beside the attempt that has lost it."""
    start_apart(broker, rig, 2, *NEVER_GIVEN_UP)
    for _ in range(CUTS - 1):
        wait_fetched_after(rig, time.monotonic())
        for host in broker.hosts:
            host.proxy.cut()
    wait_fetched_after(rig, time.monotonic())
    rig.wait_drained()
    account = rig.account()
    # A crash is charged by a copy: a cut between copy and delete leaves two, each with numbers of its own.
    assert not account["LOST"] | account["GHOST"] | account["ATT"]
    few = len(rig.enqueued) / 10
    assert len(account["DOUBLE-SETTLE"] | account["RERUN"] | account["FENCE"]) < few
    assert len(account.excused) < few
    assert len(account["DUP"]) < len(rig.enqueued) / 2
    stop_all(rig, rig.pools)


@pytest.mark.more
@pytest.mark.row(8)
@pytest.mark.on("redis-cluster", "redis", "postgres")
def test_a_server_that_closes_every_connection_under_load(broker: Broker, rig: Rig) -> None:
    """CLIENT KILL, pg_terminate_backend: what an administrator does, and what a failover does to those who wait."""
    start_pools(rig, 2)
    closed = 0
    for _ in range(CUTS):
        wait_fetched_after(rig, time.monotonic())
        closed += broker.disconnect_all()
    wait_fetched_after(rig, time.monotonic())
    assert closed >= 2 * CUTS
    end_unharmed(rig, rig.pools)


@pytest.mark.row(8)
@pytest.mark.on("postgres", "redis")
def test_half_open_connections_are_left_behind(broker: Broker, rig: Rig, figure: Figure) -> None:
    """Whatever was sent into the hole is lost, and nobody closes the connections that it was sent on."""
    pools = start_apart(broker, rig, 2, timeout=1)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 120)
    wait_until(lambda: len(rig.ends()) > 20)
    for host in broker.hosts:
        host.proxy.black_hole(keep=False)
    wait_until(lambda: all(pool.log(NO_ANSWER) for pool in pools), LIMIT, "they notice")
    wait_until(lambda: all(host.proxy.counts().bytes_lost for host in broker.hosts), what="a slow server's too")
    for host in broker.hosts:
        host.proxy.restore()
    back = time.monotonic()
    rig.enqueue("work")  # all the others may be done by now
    figure("work goes on after", wait_begun_after(rig, back), "s")
    end_unharmed(rig, rig.pools)


# --- no way to the broker at all ----------------------------------------------------------------------------


@pytest.mark.row(8)
@pytest.mark.on("redis", "postgres")
def test_leases_that_end_in_an_outage_are_neither_lost_nor_settled_late(
    broker: Broker, rig: Rig, figure: Figure
) -> None:
    """Two pools behind one network hold a job for each child and nothing else: no other settlement is on its way.

    Their circuit breakers open in plain sight, and end with the outage.
    """
    host = broker.host()
    flags = ("--ttl", str(ENDS), "--max-crashes", "0", "--log-level", "debug")
    pools = start_pools(rig, 2, *flags, workers=1, url=host.url, timeout=1)
    cut = rig.directory / "cut"
    ends_then = {"first": 0, "later": 0.1, "until": str(cut)}
    held = rig.enqueue_many("again", [{"first": 600, "later": 0.1}, ends_then], priority=1)
    pids = [line.pid for line in rig.wait_started(*held)]
    waiting = rig.enqueue_many("work", [{"seconds": 0.02}] * 20)
    part(host)
    cut.touch()
    seconds_until_gone(pids[:1], ENDS + 1.0)
    wait_until(lambda: all(pool.header().lost >= 1 for pool in pools), LIMIT, "the other one's result is dropped")
    wait_until(lambda: all(pool.log(TURNED) for pool in pools), LIMIT, "the breakers are open")
    assert not any(rig.starts(ident) for ident in waiting)
    host.proxy.restore()
    back = time.monotonic()
    wait_back(lambda: all(len(rig.starts(ident)) == 2 for ident in held), "redelivered")
    figure("work goes on after", wait_begun_after(rig, back), "s")
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert account["DUP"] <= {held[1]}
    for pool in pools:
        wait_until(lambda p=pool: len(p.log(TURNED)) == 2, what="closed")  # type: ignore[misc]
        assert [(turn["queue"], turn["open"]) for turn in pool.log(TURNED)] == [("default", True), ("default", False)]
    stop_all(rig, rig.pools)


@pytest.mark.row(8)
@pytest.mark.on("postgres", "redis")
def test_a_pool_can_be_stopped_while_its_broker_is_away(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    [pool] = start_pools(rig, 1, "--stop-grace", "1", url=host.url)
    ids = rig.enqueue_many("work", [{"seconds": 0.5}, {"seconds": 600}])
    rig.wait_started(*ids)
    part(host)
    in_time(lambda: stop_all(rig, [pool]), 1.0 + 2 * BACK)
    assert pool.log("leases are left to expire: the broker did not take what became of them")
    assert set(ids) == {message.id for message in rig.backend.list_messages()}


@pytest.mark.more
@pytest.mark.row(8)
@pytest.mark.on("servicebus")
def test_locks_outlive_an_outage_that_is_shorter_than_they_are(
    broker: ServiceBusBroker, rig: Rig, figure: Figure
) -> None:
    """They are the broker's, and no connection's; so they outlive its restart too."""
    steady = {"queue": "steady"}
    broker.control.create_queue("steady", lock_duration=LONG_LOCK, max_delivery_count=1000)
    lock = (f"lock={broker.lasts:g}", f"lock={LONG_LOCK:g}")
    hosts = [broker.host() for _ in range(2)]
    pools = [rig.start_pool("-Q", "steady", url=host.url.replace(*lock), timeout=4) for host in hosts]
    for pool in pools:
        pool.wait_ready(2)
    long = rig.enqueue("work", {"seconds": 3.0}, **steady)
    rig.wait_started(long)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 120, **steady)
    wait_until(lambda: len(rig.ends()) > 10)
    broker.restart()
    restarted = time.monotonic()
    rig.enqueue("work", **steady)  # all the others may be done by now
    wait_begun_after(rig, restarted)
    for host in hosts:
        part(host)
    wait_until(lambda: all(pool.log(NO_ANSWER) for pool in pools), LIMIT, "it is told")
    with costing(pools) as cost:
        let_pass(1.0)
    assert cost.cpu < 0.4, "no busy loop"
    for host in hosts:
        host.proxy.restore()
    back = time.monotonic()
    rig.wait_started(rig.enqueue("work", **steady))
    figure("work goes on after", wait_begun_after(rig, back), "s")
    wait_until(lambda: rig.ends(long), what="the attempt has gone on")
    assert len(rig.starts(long)) == 1
    wait_until(lambda: settled(*pools) == 123, what="what had ended is settled under its old lease")
    rig.account().assert_once_each()
    stop_all(rig, rig.pools)
