"""Row 4: masters are killed under load, while another pool is there and a third is started."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection

import pytest
from support.faultmoves import Figure, fed, freeze, gated, seconds_until_gone, start_pools, stop_all, under_way
from support.poolrig import LIMIT, PoolProcess, Rig
from support.poolrig_brokers import BeanstalkBroker, Broker
from support.stalls import Stalls
from support.waiting import wait_until

TTL = 4.0
"""Seconds: the leases of those that live must bear the pauses of a busy machine, of which two thirds are sure."""

REAP = TTL / 3 * 1.2
"""Seconds between two reaps of a pool at most."""

LATE = 1.0
"""Seconds from a reap to the start of a job, on a busy machine."""

JOB = 0.02
"""Seconds that a job of the load takes."""

WAITING = 50
"""Jobs of the load that wait at any time."""

FLAGS = ("--ttl", str(TTL), "--max-crashes", "0")
CHILDREN_GONE = 1.0


@pytest.mark.row(4)
@pytest.mark.on("postgres", "sqlite", "redis", "redis-cluster", "beanstalk", "servicebus")
def test_a_master_killed_under_load_leaves_nothing_alive_and_loses_nothing(
    broker: Broker | None, rig: Rig, figure: Figure
) -> None:
    """Its messages go to the pool that is there, and to the one that is started in its stead."""
    gate = rig.directory / "gate"
    [victim] = start_pools(rig, 1, *FLAGS, workers=3)
    long = [rig.enqueue("again", {"first": 600, "later": 0, "then": str(gate)}) for _ in range(2)]
    rig.wait_started(*long)
    others = start_pools(rig, 1, *FLAGS, workers=3)
    wait_until(lambda: fed(rig, lambda: len(_ended_by(rig, victim)) > 10, JOB, WAITING), LIMIT, "it works")
    family = [*victim.fork_servers(), *victim.children()]
    _stop_at_work(rig, victim, long)
    with Stalls() as stalls:
        victim.send(signal.SIGKILL)
        killed = time.monotonic()
        figure("children gone", seconds_until_gone(family, CHILDREN_GONE), "s")
        assert victim.wait() == -signal.SIGKILL
        in_flight = under_way(rig, victim)
        assert set(long) < in_flight, "its long jobs, and some of the load"

        others += start_pools(rig, 1, *FLAGS, workers=3)
        wait_until(lambda: all(len(rig.starts(ident)) >= 2 for ident in long), LIMIT, "redelivered")
    redelivered = max(rig.starts(ident)[1].at for ident in long) - killed
    figure("redelivered", redelivered, "s")
    assert redelivered < _lasts(broker) + REAP + LATE + stalls.allowance
    gate.touch()
    rig.wait_drained()
    account = rig.account()
    account.assert_apart()
    again = {ident for ident in rig.enqueued if len(rig.starts(ident)) > 1}
    assert again <= in_flight, "DUP: only what it held"
    figure("run again", len(again), "messages")
    stop_all(rig, others)


def _lasts(broker: Broker | None) -> float:
    """Seconds until the broker frees what a dead pool held."""
    if isinstance(broker, BeanstalkBroker):
        return 0.0  # with its connections
    return max(TTL, broker.lasts if broker else 0.0)


def _stop_at_work(rig: Rig, victim: PoolProcess, beside: Collection[str] = ()) -> None:
    """Stop it, under load, where it has more under way than those: between two jobs it may have none."""

    def stopped() -> bool:
        freeze(victim)
        if under_way(rig, victim) - set(beside):
            return True
        victim.send(signal.SIGCONT)
        return False

    wait_until(lambda: fed(rig, stopped, JOB, WAITING), LIMIT, "it has some of the load")


def _ended_by(rig: Rig, pool: PoolProcess) -> list[str]:
    return [line.id for line in rig.lines("settled") if line.pid == pool.pid and line.answer == "ok"]


@pytest.mark.more
@pytest.mark.row(4)
@pytest.mark.on("sqlite")
def test_masters_killed_again_and_again(rig: Rig) -> None:
    """Two pools on one queue, one of them killed and started anew five times."""
    [stable] = start_pools(rig, 1, *FLAGS)
    for number in range(5):
        [victim] = start_pools(rig, 1, *FLAGS)
        family = victim.children()
        gate = rig.directory / f"gate {number}"
        # First one for each child of both: else the other pool might do it all before this one has looked.
        gated_ones = [gated(rig, gate, priority=1) for _ in range(4)]
        rig.wait_started(*gated_ones)
        gate.touch()
        _stop_at_work(rig, victim, gated_ones)
        victim.stop(signal.SIGKILL)
        seconds_until_gone(family, CHILDREN_GONE)
    rig.wait_drained()
    rig.account().assert_apart()
    stop_all(rig, [stable])
