"""Row 5: a master is stopped past its leases while a second pool runs, and goes on."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.faultmoves import (
    Figure,
    freeze,
    gated,
    let_pass,
    runner_of,
    seconds_until_gone,
    start_pools,
    stop_all,
    wait_runs,
)
from support.poolrig import LIMIT, PoolProcess, Rig
from support.poolrig_brokers import SHORT_TTR, BeanstalkBroker
from support.waiting import wait_until

from jobpool_torture.ledger import Line
from jobpool_torture.processes import is_alive, state

TTL = 4.0
"""Seconds: the machine may stand still for two of them before the master is stopped."""

FLAGS = ("--ttl", str(TTL), "--max-crashes", "0")
REFUSALS = {"not-owner", "expired", "not-in-flight"}

SURELY = ("--ttl", "6", *FLAGS[2:])
"""Of the pool that takes over: its leases bear a pause of the machine."""

FREE = 0.3
"""Seconds within which SQLite's lock can be had, where nobody who holds it is stopped."""

KILLED = 1.5
"""Seconds within which the child of a lost lease is dead."""


@pytest.mark.row(5)
@pytest.mark.on("sqlite", "redis", "postgres", "servicebus")
def test_a_master_that_slept_past_its_leases_settles_none_and_goes_on(rig: Rig, figure: Figure) -> None:
    """One job still runs when it wakes: its child is killed. One ended meanwhile: its result is dropped."""
    never, ended, later = (rig.directory / name for name in ("never", "ended", "later"))
    [sleeper] = start_pools(rig, 1, *FLAGS, workers=3)
    running, finished = gated(rig, never, later), gated(rig, ended, later)
    [holder], [finisher] = ([line.pid] for line in rig.wait_started(running, finished))
    [bystander] = set(sleeper.children()) - {holder, finisher}
    _stop_between_writes(rig, sleeper)
    ended.touch()
    wait_until(lambda: rig.ends(finished), what="the first child has ended, and nobody hears it")
    [other] = start_pools(rig, 1, *SURELY, workers=3)
    for ident in (running, finished):
        wait_runs(rig, ident, 2, LIMIT)

    sleeper.send(signal.SIGCONT)
    figure("child of a lost lease killed", seconds_until_gone([holder], KILLED), "s")
    sleeper.wait_ready(3)
    assert {bystander, finisher} <= set(sleeper.children()), "no healthy child is killed"
    assert is_alive(bystander)
    later.touch()
    rig.wait_drained()
    for ident in (running, finished):
        accepted = _accepted(rig, ident)
        assert (accepted.verb, accepted.fence > 1) == ("ack", True), "not the first delivery"
        assert accepted.pid == other.pid
    wait_until(lambda: sleeper.header().lost >= 2, what="both are counted")
    _check_that_it_goes_on(rig, sleeper, workers=6)
    rig.account().assert_clean()
    assert not rig.dead()
    stop_all(rig, [sleeper, other])


@pytest.mark.row(5)
@pytest.mark.on("redis", "redis-cluster", "postgres")
def test_a_settlement_that_reaches_the_broker_too_late_is_refused(rig: Rig) -> None:
    """The master stops between its decision and its call; by the time of the call the message is another pool's.

    Not on SQLite: there its other threads may hold the file's lock where it stops, and nobody else gets anywhere.
    """
    first, later = rig.directory / "first", rig.directory / "later"
    [sleeper] = start_pools(rig, 1, *FLAGS, FAILPOINT="before-settle/ack:1=stop")
    ident = gated(rig, first, later)
    rig.wait_started(ident)
    first.touch()
    wait_until(lambda: state(sleeper.pid) == "T", LIMIT, "it has stopped itself")
    [other] = start_pools(rig, 1, *SURELY)
    wait_runs(rig, ident, 2, LIMIT)
    sleeper.send(signal.SIGCONT)
    late = wait_until(lambda: _answers_to(rig, ident, sleeper), LIMIT, "it is answered")[-1]
    assert (late.fence, late.verb) == (1, "ack")
    assert late.answer in REFUSALS
    later.touch()
    rig.wait_drained()
    rig.account().assert_clean()
    assert _accepted(rig, ident).pid == other.pid
    stop_all(rig, [sleeper, other])


def _accepted(rig: Rig, ident: str) -> Line:
    """The one settlement of it that was accepted: the broker has it a moment before the pool that asked hears of it."""
    there = wait_until(
        lambda: [line for line in rig.lines("settled", ident) if line.answer == "ok"], LIMIT, "an answer"
    )
    [accepted] = there
    return accepted


def _answers_to(rig: Rig, ident: str, pool: PoolProcess) -> list[Line]:
    return [line for line in rig.lines(ident=ident) if line.pid == pool.pid and line.event in ("settled", "unknown")]


@pytest.mark.row(5)
@pytest.mark.on("sqlite")
def test_a_pause_that_its_leases_outlive_costs_nothing(rig: Rig) -> None:
    """It renews before it acts, though every renewal is late; and it hears a result before it kills for time."""
    pools = start_pools(rig, 2, "--ttl", "20", "--kill-grace", "0.2", "--max-crashes", "0")
    ended = rig.directory / "ended"
    timed = gated(rig, ended, timeout=8.0)  # on a busy machine the others begin late, and it must not be over by then
    [begun] = rig.wait_started(timed)
    sleeper, [other] = runner_of(begun.pid, pools)
    long = rig.enqueue_many("work", [{"seconds": 10.0}] * 3)  # as many as are idle: one of them is the sleeper's
    starts = rig.wait_started(*long)
    assert {line.pid for line in starts} & set(sleeper.children())
    _stop_between_writes(rig, sleeper)
    ended.touch()
    let_pass(8.5)  # past when renewals were due, at a third of the ttl, and past the timeout and its grace
    assert rig.ends(timed)
    sleeper.send(signal.SIGCONT)
    rig.wait_drained()
    assert len(rig.starts(timed)) == 1
    rig.account().assert_once_each()
    assert {line.id for line in rig.lines("lost")} <= {timed}, "its renewal may meet its ack, which came just before"
    assert not sleeper.log("a child died")
    stop_all(rig, [sleeper, other])


@pytest.mark.more
@pytest.mark.row(5)
@pytest.mark.on("beanstalk")
@pytest.mark.ttr(SHORT_TTR)
def test_a_master_that_slept_on_beanstalkd_settles_none_and_goes_on(broker: BeanstalkBroker, rig: Rig) -> None:
    """The server may free a silent client's lease late, so nobody is waited for who has it meanwhile."""
    never, later = rig.directory / "never", rig.directory / "later"
    pools = start_pools(rig, 2, *FLAGS)
    ident = gated(rig, never, later)
    [line] = rig.wait_started(ident)
    sleeper, [other] = runner_of(line.pid, pools)
    healthy = set(sleeper.children()) - {line.pid}
    sleeper.send(signal.SIGSTOP)
    let_pass(broker.lasts + 1.0)
    sleeper.send(signal.SIGCONT)
    seconds_until_gone([line.pid], KILLED)
    assert healthy <= set(sleeper.children()), "no healthy child is killed"
    later.touch()
    wait_runs(rig, ident, 2, LIMIT)
    rig.wait_drained()
    rig.account().assert_clean()
    assert min(line.fence for line in rig.ends(ident)) > 1, "not the first delivery"
    _check_that_it_goes_on(rig, sleeper, workers=4)
    stop_all(rig, [sleeper, other])


def _stop_between_writes(rig: Rig, pool: PoolProcess) -> None:
    """Stop it, and on SQLite not in the middle of a write: it would keep the file's lock, and hold up every pool."""

    def stopped() -> bool:
        freeze(pool)
        if not rig.url.startswith("sqlite:") or _is_unlocked(rig.directory / "jobpool.db"):
            return True
        pool.send(signal.SIGCONT)
        let_pass(0.05)
        return False

    wait_until(stopped, LIMIT, "it is stopped, and holds no lock")


def _is_unlocked(file: Path) -> bool:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=FREE)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
    return True


def _check_that_it_goes_on(rig: Rig, pool: PoolProcess, workers: int) -> None:
    """As many jobs as both pools have children, and none ends before all have begun."""
    end = rig.directory / "end"
    late = rig.wait_started(*[gated(rig, end, end) for _ in range(workers)])
    assert {line.pid for line in late} & set(pool.children())
    end.touch()
    rig.wait_drained()
