"""Networks between pools and their broker that fail: black holes, resets, half-open connections (FAULTS 8)."""

from __future__ import annotations

import time

from support.poolrig import PoolProcess, Rig, wait_gone
from support.poolrig_brokers import Broker
from support.waiting import wait_until

from jobpool.backend import State

TTL = 1.5
LEASES = ("--ttl", str(TTL), "--max-crashes", "0")
REFUSED = "a settlement was refused"
BACK = 5.0
"""Seconds after the network is back within which work goes on."""


def settled(*pools: PoolProcess) -> int:
    """How many jobs these pools have settled."""
    return sum(pool.header().succeeded for pool in pools)


def wait_for(seconds: float) -> None:
    """Let so much time pass, where time is what the test is about."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 1)


def test_a_pool_behind_a_black_hole_loses_what_it_holds_and_nobody_else_notices(broker: Broker, rig: Rig) -> None:
    """Three hosts; one is cut off for two ttls while it holds a job that is done and one that runs."""
    hosts = [broker.host() for _ in range(3)]
    lonely = rig.start_pool(*LEASES, url=hosts[0].url).wait_ready(2)
    cut_off = rig.directory / "cut off"
    heard = rig.directory / "heard"
    done = rig.enqueue("again", {"first": 0.0, "later": 0.1, "until": str(cut_off), "then": str(heard)})
    running = rig.enqueue("again", {"first": 60, "later": 0.1})
    held = [line.pid for line in rig.wait_started(done, running)]
    others = [rig.start_pool(*LEASES, url=host.url) for host in hosts[1:]]
    for pool in others:
        pool.wait_ready(2)
    begun = time.monotonic()
    hosts[0].proxy.black_hole()
    cut_off.touch()
    feed(rig)
    before = settled(*others)

    wait_gone(held[1:], TTL + 1.0)
    assert time.monotonic() - begun > TTL / 2, "not before its lease had ended"
    assert rig.ends(done)
    wait_until(lambda: len(rig.starts(running)) == len(rig.starts(done)) == 2, TTL + 1.0, "redelivered")
    assert {line.pid for ident in (running, done) for line in rig.starts(ident)[1:]} <= children(*others)
    assert settled(*others) > before
    halfway = settled(*others)
    wait_for(begun + 2 * TTL - time.monotonic())
    feed(rig)
    assert settled(*others) > halfway

    hosts[0].proxy.restore()
    back = time.monotonic()
    family = set(lonely.children())
    assert not family & set(held[1:])
    # More than the others' children can take at once: something is left for it, however late it comes.
    rig.enqueue_many("again", [{"first": 0, "later": 0, "until": str(heard)}] * 5, priority=1)
    wait_until(lambda: any(line.at > back and line.pid in family for line in rig.starts()), BACK, "it works again")
    message = rig.inspect(done)
    assert (message.state, message.deliveries) == (State.LEASED, 2), "the late ack of the first delivery was refused"
    heard.touch()
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert account.duplicates <= {done}
    assert [len(rig.starts(ident)) for ident in (done, running)] == [2, 2]
    assert [rig.starts(ident)[1].crashes for ident in (done, running)] == [1, 1]
    assert len([ident for ident in rig.enqueued if len(rig.starts(ident)) > 1]) <= 2 + 4, "and what it had looked ahead"
    assert lonely.header().lost >= 2
    assert lonely.log("a lease ended before the broker answered its settlement") or lonely.log(REFUSED)
    assert [pool.stop() for pool in rig.pools] == [0, 0, 0]
    rig.assert_no_processes_left()


def feed(rig: Rig) -> None:
    """Short jobs for some two seconds."""
    rig.enqueue_many("work", [{"seconds": 0.05}] * 150)


def children(*pools: PoolProcess) -> set[int]:
    return {pid for pool in pools for pid in pool.children()}


def test_connections_that_are_reset_again_and_again(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    pool = rig.start_pool(url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 250)
    for _ in range(12):
        ended = len(rig.ends())
        wait_until(lambda e=ended: len(rig.ends()) > e or rig.stats().pending == 0, BACK)  # type: ignore[misc]
        host.proxy.cut()
    rig.wait_drained()
    rig.account().assert_once_each()
    assert not any(rig.account().crashes.values())
    assert host.proxy.counts().connections > 12
    assert pool.stop() == 0


def test_a_server_that_closes_every_connection_under_load(broker: Broker, rig: Rig) -> None:
    """CLIENT KILL, pg_terminate_backend: what an administrator does, and what a failover does to those who wait."""
    pool = rig.start_pool().wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 250)
    closed = 0
    for _ in range(8):
        ended = len(rig.ends())
        wait_until(lambda e=ended: len(rig.ends()) > e or rig.stats().pending == 0, BACK)  # type: ignore[misc]
        closed += broker.disconnect_all()
    rig.wait_drained()
    rig.account().assert_once_each()
    assert not any(rig.account().crashes.values())
    assert closed >= 16
    assert pool.stop() == 0


def test_half_open_connections_are_left_behind(broker: Broker, rig: Rig) -> None:
    """Whatever was sent into the hole is lost, and nobody closes the connections that it was sent on."""
    host = broker.host()
    pool = rig.start_pool(url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 120)
    wait_until(lambda: len(rig.ends()) > 20)
    host.proxy.black_hole(keep=False)
    wait_until(lambda: pool.log("the broker does not answer; trying again until it does"), BACK)
    assert host.proxy.counts().bytes_lost
    host.proxy.restore()
    back = time.monotonic()
    wait_until(lambda: any(line.at > back + 0.1 for line in rig.starts()), BACK, "work goes on")
    rig.wait_drained()
    rig.account().assert_once_each()
    assert not any(rig.account().crashes.values())
    assert pool.stop() == 0


def test_a_hint_that_was_lost_delays_nobody_else(broker: Broker, rig: Rig) -> None:
    """The broker tells one of two idle pools of a message, and that one cannot hear it."""
    host = broker.host()
    rig.start_pool(url=host.url).wait_ready(2)
    hearing = rig.start_pool().wait_ready(2)
    wait_for(0.5)
    for _ in range(3):
        host.proxy.black_hole()
        enqueued = time.monotonic()
        [start] = rig.wait_started(rig.enqueue("work"))
        assert start.pid in hearing.children()
        assert start.at - enqueued < 1.2
        host.proxy.restore()


def test_no_job_begins_with_a_lease_that_has_ended(broker: Broker, rig: Rig) -> None:
    """The broker leases a message, and says so when somebody else may have it already."""
    host = broker.host()
    pool = rig.start_pool("--ttl", "1", "--max-crashes", "0", url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{}] * 50)  # after which every connection that it needs is open
    rig.wait_drained()
    host.proxy.delay(0.6)
    ident = rig.enqueue("work")
    wait_until(lambda: rig.inspect(ident).deliveries == 1, what="leased")
    wait_for(0.3)  # the answer is on its way
    host.proxy.delay(0.0)
    rig.wait_drained()
    assert len(rig.starts(ident)) == 1, "begun with a lease that holds, or not at all"
    assert pool.stop() == 0
