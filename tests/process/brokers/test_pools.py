"""Pools on several hosts that share one queue and nothing else."""

from __future__ import annotations

import pytest
from support.poolrig import Rig
from support.poolrig_brokers import Broker
from support.waiting import wait_until

TTL = 1.0


@pytest.mark.also("beanstalk", "servicebus")
def test_poison_ends_at_the_crash_limit_whichever_pool_it_meets(broker: Broker, rig: Rig) -> None:
    """FAULTS 3 over two pools: the count is the message's, not a pool's. FAULTS 1: one job is longer than its lease."""
    pools = [rig.start_pool("--max-crashes", "3", "--ttl", str(TTL), url=broker.host().url) for _ in range(2)]
    for pool in pools:
        pool.wait_ready(2)
    long = rig.enqueue("work", {"seconds": 3 * TTL + 0.2})
    rig.enqueue_many("work", [{"seconds": 0.005}] * 100)
    poison = rig.enqueue_many("die", [{"how": "SIGSEGV", "times": 99}] * 3)
    rig.enqueue_many("work", [{"seconds": 0.005}] * 100)
    wait_until(lambda: all(rig.is_dead(ident) for ident in poison), 20.0)
    rig.wait_drained()
    assert len(rig.ends()) == 201
    assert len(rig.starts(long)) == 1
    rig.account().assert_once_each()
    for ident in poison:
        message = rig.inspect(ident)
        assert (message.reason, message.attempts, message.crashes) == ("crash-limit", 0, 4)
        assert "killed by SIGSEGV" in (message.cause or "")
        assert len(rig.starts(ident)) == 4
    assert [pool.stop() for pool in pools] == [0, 0]
    rig.assert_no_processes_left()
