"""Single-instance locks over two real pools, also when one of them is killed."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest
from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

from jobpool_torture.ledger import Line

TTL = 2.0


def start_two_pools(rig: Rig) -> tuple[PoolProcess, PoolProcess]:
    """Whose leases no pause of the machine's can end."""
    first, second = (rig.start_pool(workers=2) for _ in range(2))
    return first.wait_ready(2), second.wait_ready(2)


def sums(*pools: PoolProcess) -> Counter[str]:
    """What the pools have counted, together; asked after their end."""
    total: Counter[str] = Counter()
    for pool in pools:
        [stopped] = pool.log("stopped")
        total.update({name: value for name, value in stopped.items() if isinstance(value, int)})
    return total


def overlaps(lines: list[Line]) -> list[tuple[str, str]]:
    """Pairs of messages that ran at the same time."""
    found, running = [], set[str]()
    for line in sorted(lines, key=lambda line: line.at):
        if line.event == "start":
            found += [(other, line.id) for other in running]
            running.add(line.id)
        else:
            running.discard(line.id)
    return found


@pytest.mark.brokers
def test_jobs_that_must_be_alone_never_overlap_over_two_pools(rig: Rig) -> None:
    pools = start_two_pools(rig)
    alone = rig.enqueue_many("work", [{"seconds": 0.1}] * 5, name="nightly", single_instance=True)
    others = rig.enqueue_many("work", [{"seconds": 0.1}] * 10)
    rig.wait_drained(limit=60.0)
    assert overlaps([line for line in rig.lines() if line.id in alone]) == []
    assert {line.id for line in rig.ends()} == {*alone, *others}
    rig.account().assert_once_each()
    assert [pool.stop() for pool in pools] == [0, 0]
    total = sums(*pools)
    assert total["succeeded"] == 15
    assert total["failed"] == total["dead"] == total["crashed"] == 0, "contention is never a failure"
    assert total["fetched"] == 15 + total["released"]


def test_what_a_killed_pool_held_another_takes_when_the_lease_ends(rig: Rig) -> None:
    """A lock; keys are held likewise (faults/test_crashes_with_a_key.py)."""
    guard = {"name": "nightly", "single_instance": True}
    first = rig.start_pool("--ttl", str(TTL), workers=1).wait_ready(1)
    held = rig.enqueue("again", {"first": 600, "later": 0.1}, **guard)
    rig.wait_started(held)
    second = rig.start_pool("--ttl", str(TTL), workers=1).wait_ready(1)
    waiting = rig.enqueue("work", **guard)
    wait_until(lambda: second.header().released >= 1, what="the second pool has met the lock")
    assert rig.starts(waiting) == []
    [begun] = rig.starts(held)
    first.stop(signal.SIGKILL)
    killed = time.monotonic()
    rig.wait_drained(limit=60.0)
    assert second.stop() == 0
    # The waiting one asks again on its own time, the held one comes back by the reaper: either may be the first.
    done = [line.id for line in rig.ends()]
    assert done in ([held, waiting], [waiting, held])
    later = rig.lines()[1:]
    assert Counter(line.id for line in later if line.event == "start") == Counter(done), "each that ran, once"
    assert all(line.at > killed for line in later)
    assert all(line.fence > begun.fence and line.crashes == 1 for line in rig.starts(held)[1:])
    assert overlaps(later) == []
    assert sums(second)["succeeded"] == 2
