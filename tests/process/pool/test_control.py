"""Real pools, and a person who pauses their queues."""

from __future__ import annotations

import pytest
from support.poolrig import Rig
from support.waiting import wait_until

from jobpool.broker import control


def pause(rig: Rig, queue: str) -> None:
    """Pause it, and wait until the running pools show that they know."""
    control.pause(rig.backend, queue, "by the test")
    for pool in rig.pools:
        if pool.process.poll() is None:
            wait_until(lambda pool=pool: queue in pool.header().paused.split())  # type: ignore[misc]


@pytest.mark.brokers
def test_a_paused_queue_is_fetched_by_no_pool_also_not_by_one_that_starts_later(rig: Rig) -> None:
    flags = ("-Q", "default,other")
    first = rig.start_pool(*flags, workers=1).wait_ready(1)
    pause(rig, "default")
    second = rig.start_pool(*flags, workers=1).wait_ready(1)
    kept = rig.enqueue_many("work", [{}] * 5)
    free = rig.enqueue_many("work", [{}] * 20, queue="other")
    rig.wait_drained(queue="other")
    assert {line.id for line in rig.starts()} == set(free)
    assert rig.stats().waiting == 5
    assert control.resume(rig.backend, "default")
    rig.wait_drained()
    assert {line.id for line in rig.starts()} == {*kept, *free}
    assert [first.stop(), second.stop()] == [0, 0]
    rig.account().assert_once_each()


def test_a_burst_does_not_wait_for_a_paused_queue(rig: Rig) -> None:
    control.pause(rig.backend, "default")
    kept = rig.enqueue("work", {})
    free = rig.enqueue("work", {}, queue="other")
    assert rig.run_pool("-Q", "default,other", "--until-empty").wait() == 0
    assert {line.id for line in rig.starts()} == {free}
    assert rig.inspect(kept).attempts == 0


@pytest.mark.brokers
def test_a_pool_tells_of_itself_and_is_drained_and_resumed_from_afar(rig: Rig) -> None:
    pool = rig.start_pool(workers=1).wait_ready(1)
    [record] = wait_until(lambda: [one for one in control.pools(rig.backend) if one.queues])
    assert (record.pid, record.name, record.queues) == (pool.pid, pool.name, ["default"])
    assert control.drain(rig.backend, record.id)
    wait_until(lambda: pool.header().draining)
    wait_until(lambda: [one.state for one in control.pools(rig.backend)] == ["drained"])
    ident = rig.enqueue("work", {})
    other = rig.start_pool(workers=1).wait_ready(1)
    rig.wait_drained()
    [start] = rig.starts(ident)
    assert start.pid in other.children()
    assert other.stop() == 0
    kept = rig.enqueue("work", {})
    assert control.undrain(rig.backend, record.id)
    rig.wait_drained()
    assert len(rig.starts(kept)) == 1
    assert pool.stop() == 0
    assert control.pools(rig.backend) == []
