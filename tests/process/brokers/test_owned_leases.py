"""Pools on brokers that free leases themselves: beanstalkd, whose leases live with a connection, and Service Bus."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.poolrig import LIMIT, Rig, wait_gone
from support.poolrig_brokers import TTR, BeanstalkBroker, Broker
from support.waiting import wait_until

if TYPE_CHECKING:
    from support.poolrig_servicebus import ServiceBusBroker

BROKE = "leases ended with their connection to the broker"
BACK = 5.0
"""Seconds after the broker, or the way to it, is back within which work goes on."""

CUTS = 4

LONG_LOCK = 30.0
"""Seconds."""

both = pytest.mark.only("beanstalk", "servicebus")
beanstalk = pytest.mark.only("beanstalk")


def started(rig: Rig, ident: str, times: int, limit: float) -> list[int]:
    """Wait for so many starts of a message; the pids that had it."""
    wait_until(lambda: len(rig.starts(ident)) >= times, limit, f"{ident} began {times} times")
    return [line.pid for line in rig.starts(ident)]


def dead_letter(rig: Rig, ident: str) -> tuple[str | None, int, int, str]:
    """Reason, attempts, crashes and cause."""
    message = rig.inspect(ident)
    return message.reason, message.attempts, message.crashes, message.cause or ""


def wait_for_file(rig: Rig, file: Path, **options: int) -> str:
    """Enqueue a job that ends when the file is there, in whichever delivery."""
    return rig.enqueue("again", {"first": 0, "later": 0, "until": str(file), "then": str(file)}, **options)


# --- what ends one attempt ----------------------------------------------------------------------------


@both
def test_failures_timeouts_and_crashes_count_as_they_do_elsewhere(rig: Rig) -> None:
    """FAULTS 2, 3, 10; and the pool that stops because all is done has counted who died last."""
    failing = rig.enqueue("fail", {"times": 1}, max_retries=1)
    hanging = rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=0.5, max_retries=1)
    crashing = rig.enqueue("die", {"how": "SIGSEGV", "times": 1})
    good = rig.enqueue_many("work", [{"seconds": 0.005}] * 60)
    poison = rig.enqueue("die", {"how": "SIGSEGV", "times": 99})
    flags = ("--until-empty", "--fail-on-dead", "--max-crashes", "1", "--kill-grace", "0.2")
    pool = rig.run_pool(*flags, "--dead-letter-queue", "failed-payloads", workers=2)
    assert pool.wait() == 1, "two have died"
    account = rig.account()
    assert account.lost | account.ghosts | account.fences | account.duplicates | account.overlaps == set()
    assert {line.id for line in rig.ends()} == {failing, crashing, *good}
    assert [line.attempt for line in rig.starts(failing)] == [1, 2]
    assert [(line.attempt, line.crashes) for line in rig.starts(crashing)] == [(1, 0), (1, 1)]
    assert [(line.attempt, line.crashes) for line in rig.starts(poison)] == [(1, 0), (1, 1)]
    assert [(line.attempt, line.crashes) for line in rig.starts(hanging)] == [(1, 0), (2, 0)]
    reason, attempts, crashes, cause = dead_letter(rig, poison)
    assert (reason, attempts, crashes) == ("crash-limit", 0, 2)
    assert "killed by SIGSEGV" in cause
    reason, attempts, crashes, cause = dead_letter(rig, hanging)
    assert (reason, crashes) == ("timeout", 0)
    assert "hang_in_sum" in cause
    [stopped] = pool.log("stopped")
    assert (stopped["dead"], stopped["reaped"], stopped["succeeded"]) == (2, 3, 62)
    assert rig.stats("failed-payloads").waiting == 2, "the payloads of both: one with its abandon, one behind the reap"


# --- what ends a pool ---------------------------------------------------------------------------------


@both
def test_a_stop_gives_leases_back_at_once_and_a_killed_master_as_soon_as_its_broker_can(
    broker: Broker, rig: Rig
) -> None:
    """FAULTS 4, 21."""
    owned = isinstance(broker, BeanstalkBroker)
    rig.url = rig.url.replace(f"ttr={TTR}", f"ttr={LONG_LOCK:g}")
    ids = [rig.enqueue("again", {"first": 60, "later": 60}) for _ in range(2)]
    first = rig.start_pool("--stop-grace", "0.1")
    rig.wait_started(*ids)
    assert first.stop(signal.SIGINT) == 0
    second = rig.start_pool("--ttl", "60", "--max-crashes", "0")
    for ident in ids:
        started(rig, ident, 2, LIMIT)
    third = rig.start_pool("--max-crashes", "0", "--stop-grace", "0.1").wait_ready(2)
    second.send(signal.SIGKILL)
    for ident in ids:  # beanstalkd: with its connections, long before they would have run out
        started(rig, ident, 3, BACK if owned else broker.lasts + BACK)
    for ident in ids:
        told = [(line.attempt, line.crashes) for line in rig.starts(ident)]
        assert told[:2] == [(1, 0), (1, 0)], "a stop moves no counter"
        assert told[2] in ([(1, 1)] if owned else [(1, 0), (1, 1)])
        fences = [line.fence for line in rig.starts(ident)]
        assert fences == sorted(set(fences))
    assert third.stop() == 0
    rig.assert_no_processes_left()


# --- brokers that end ---------------------------------------------------------------------------------


@beanstalk
@pytest.mark.own_server
def test_leases_are_lost_with_a_broker_that_is_killed_and_nothing_else_is(broker: Broker, rig: Rig) -> None:
    """FAULTS 8, with the binlog: the attempts are killed at once, and their messages run again.

    How often a job was reserved is not in the binlog: after it no crash is charged, and fences begin anew.
    """
    pools = [rig.start_pool("--max-crashes", "0", url=broker.host().url) for _ in range(2)]
    for pool in pools:
        pool.wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 150)
    back_again = rig.directory / "back again"
    long = [wait_for_file(rig, back_again, priority=1) for _ in range(2)]
    pids = [line.pid for line in rig.wait_started(*long)]
    wait_until(lambda: len(rig.ends()) > 30)
    broker.server.kill()
    wait_gone(pids, 1.5)
    wait_until(lambda: any(pool.log(BROKE) for pool in pools), 1.0, "loudly")
    spent, said = [pool.cpu_seconds() for pool in pools], [len(pool.log_lines()) for pool in pools]
    wait_a_moment(1.0)
    for pool, cpu, lines in zip(pools, spent, said, strict=True):
        assert pool.cpu_seconds() - cpu < 0.2, "no busy loop"
        assert len(pool.log_lines()) - lines <= 12, "and no flood of its log"
    back_again.touch()
    broker.server.start()
    for ident in long:
        started(rig, ident, 2, BACK)
    rig.wait_drained()
    account = rig.account()
    assert account.lost | account.ghosts | account.wrong_attempts == set()
    assert len(account.duplicates) <= 4 + 4, "what was done, and not yet settled"
    assert [len(rig.ends(ident)) for ident in long] == [1, 1]
    assert sum(pool.header().lost for pool in pools) >= 2
    assert [pool.stop() for pool in pools] == [0, 0]
    rig.assert_no_processes_left()


def wait_a_moment(seconds: float) -> None:
    """Let time pass, where time is what the test is about."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 1.0)


@both
def test_a_pool_behind_a_black_hole_lets_go_of_what_it_held_and_goes_on(broker: Broker, rig: Rig) -> None:
    """FAULTS 8: the attempt ends with its lease, by this machine's clock; nothing that it did is settled."""
    host = broker.host()
    pool = rig.start_pool("--max-crashes", "0", url=host.url).wait_ready(2)
    back_again = rig.directory / "back again"
    long = wait_for_file(rig, back_again)
    [line] = rig.wait_started(long)
    host.proxy.black_hole()
    cut = time.monotonic()
    wait_gone([line.pid], broker.lasts + 1.5)
    assert time.monotonic() - cut > broker.lasts / 4, "not before its lease had ended"
    back_again.touch()
    host.proxy.restore()
    back = time.monotonic()
    started(rig, long, 2, BACK + broker.lasts)
    rig.enqueue_many("work", [{"seconds": 0.005}] * 50)
    wait_until(lambda: any(done.at > back for done in rig.ends()), BACK, "work goes on")
    rig.wait_drained()
    account = rig.account()
    assert account.lost | account.ghosts | account.wrong_attempts | account.fences | account.overlaps == set()
    assert pool.header().lost >= 1
    assert pool.stop() == 0


@both
def test_connections_that_are_cut_again_and_again_lose_nothing(broker: Broker, rig: Rig) -> None:
    """FAULTS 8. What was not settled when its lease went runs again, maybe beside the attempt that has lost it."""
    host = broker.host()
    pool = rig.start_pool("--max-crashes", "0", "--crash-back-off", "0", url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 120)
    for _ in range(CUTS):
        ended = len(rig.ends())
        wait_until(lambda e=ended: len(rig.ends()) > e or rig.stats().pending == 0, BACK)  # type: ignore[misc]
        host.proxy.cut()
    rig.wait_drained()
    account = rig.account()
    assert account.lost | account.ghosts | account.wrong_attempts == set()
    assert account.fences <= account.duplicates, "of two copies, where the second of its two steps was cut off"
    assert len(account.duplicates) < 120 / 2
    assert pool.stop() == 0


@both
def test_settlements_that_nobody_answers_lose_nothing(broker: Broker, rig: Rig) -> None:
    """FAULTS 9: such a job may run again, with its counters as they were."""
    host = broker.host()
    pool = rig.start_pool("--max-crashes", "0", "--crash-back-off", "0", url=host.url).wait_ready(2)
    host.proxy.drop_replies(share=0.1, seed=3, match=broker.settle_calls)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 80)
    failing = rig.enqueue_many("fail", [{"times": 1}] * 5, max_retries=1)
    rig.wait_drained()
    assert host.proxy.counts().dropped >= 2
    account = rig.account()
    assert account.lost | account.ghosts == set()
    assert {line.id for line in rig.ends()} == rig.enqueued
    assert all({line.attempt for line in rig.starts(ident)} == {1, 2} for ident in failing)
    assert pool.stop() == 0


@pytest.mark.only("servicebus")
def test_leases_outlive_an_outage_that_is_shorter_than_their_locks(broker: ServiceBusBroker, rig: Rig) -> None:
    """FAULTS 8: they belong to the broker's locks and not to a connection."""
    steady = {"queue": "steady"}
    broker.control.create_queue("steady", lock_duration=LONG_LOCK, max_delivery_count=1000)
    host = broker.host()
    url = host.url.replace(f"lock={broker.lasts:g}", f"lock={LONG_LOCK:g}")
    pool = rig.start_pool("-Q", "steady", "--broker-timeout", "2", url=url).wait_ready(2)
    long = rig.enqueue("work", {"seconds": 3.0}, **steady)
    rig.wait_started(long)
    rig.enqueue_many("work", [{"seconds": 0.02}] * 40, **steady)
    wait_until(lambda: len(rig.ends()) > 10)
    host.proxy.refuse()
    host.proxy.cut()
    wait_until(lambda: pool.log("the broker does not answer; trying again until it does"), BACK, "it is told")
    cpu = pool.cpu_seconds()
    wait_a_moment(1.0)
    assert pool.cpu_seconds() - cpu < 0.4, "no busy loop"
    host.proxy.restore()
    last = rig.enqueue("work", **steady)
    rig.wait_started(last, limit=2 * BACK)
    wait_until(lambda: rig.ends(long), what="the attempt has gone on")
    assert len(rig.starts(long)) == 1
    wait_until(lambda: pool.header().succeeded >= 12, what="what had ended is settled under its old lease")
    assert pool.log("the broker answers again")
    assert pool.stop() == 0
    account = rig.account()
    assert account.lost | account.ghosts | account.wrong_attempts | account.overlaps == set()
    assert account.duplicates == set()


# --- what an idle connection may cost -----------------------------------------------------------------


@beanstalk
def test_a_job_in_the_last_second_of_its_lease_makes_nobody_busy(broker: Broker, tmp_path: Path) -> None:
    """FAULTS 27: DEADLINE_SOON answers every reserve at once, on the connection that holds such a job."""
    rig = Rig(tmp_path / "short", broker.url.replace(f"ttr={TTR}", "ttr=1"))
    rig.directory.mkdir()
    try:
        pool = rig.start_pool().wait_ready(2)
        ident = rig.enqueue("work", {"seconds": 4.0})
        rig.wait_started(ident)
        spent, asked = pool.cpu_seconds(), broker.commands()
        wait_a_moment(2.0)
        assert pool.cpu_seconds() - spent < 0.2
        assert broker.commands() - asked < 60, "renewals, a look each second, and who counts here"
        rig.wait_drained()
        assert rig.ends(ident)
        assert pool.stop() == 0
    finally:
        rig.end()


@beanstalk
def test_a_pool_that_was_frozen_settles_nothing_it_has_lost(rig: Rig) -> None:
    """FAULTS 5. beanstalkd 1.12 may free the lease of a silent client late, so nobody else is waited for."""
    pool = rig.start_pool("--max-crashes", "0").wait_ready(2)
    awake = rig.directory / "awake"
    ident = wait_for_file(rig, awake)
    [line] = rig.wait_started(ident)
    children = set(pool.children())
    pool.send(signal.SIGSTOP)
    wait_a_moment(TTR + 1.0)
    pool.send(signal.SIGCONT)
    wait_gone([line.pid], 2.0)
    awake.touch()
    assert children - {line.pid} <= set(pool.children()), "no healthy child is killed"
    started(rig, ident, 2, BACK + TTR)
    rig.wait_drained()
    rig.account().assert_clean()
    assert len(rig.ends(ident)) == 1
    assert pool.stop() == 0
