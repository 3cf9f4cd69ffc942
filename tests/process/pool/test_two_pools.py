"""Two real pools on one broker: they share the work, and hold together what no one pool could hold alone."""

from __future__ import annotations

from collections import Counter

import pytest
from support.faultmoves import most_at_once
from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

from jobpool_torture.ledger import Line


def start_two_pools(rig: Rig, *flags: str) -> tuple[PoolProcess, PoolProcess]:
    """Whose leases no pause of the machine's can end."""
    first, second = (rig.start_pool(*flags) for _ in range(2))
    return first.wait_ready(2), second.wait_ready(2)


def lines_of(rig: Rig, idents: list[str]) -> list[Line]:
    return [line for line in [*rig.starts(), *rig.ends()] if line.id in idents]


@pytest.mark.brokers
def test_two_pools_share_the_work_and_hold_locks_limits_and_rates(rig: Rig) -> None:
    rig.witness = True
    flags = ("--concurrency-limit", "few=3", "--concurrency-per-key", "keyed=1", "--rate-limit", "rated=6")
    pools = start_two_pools(rig, "-Q", "default,few,keyed,rated", *flags, "--rate-limit", "mails=6")
    hold_a_limit(rig, pools)  # first: who has met quick jobs only takes many at once, and the other gets none
    hold_a_limit_per_key(rig)
    hold_a_lock(rig)
    share_a_queue(rig, pools)
    rig.account().assert_once_each()
    limited = hold_a_rate(rig)

    assert [pool.stop() for pool in pools] == [0, 0]
    started = {line.id for line in lines_of(rig, limited)}
    assert len(started) == 6, "exactly so many"
    counts = rig.stats("rated")
    assert (counts.waiting, counts.delayed, counts.leased, counts.dead) == (14, 0, 0, 0)
    kept = [rig.inspect(ident) for ident in set(limited).difference(started)]
    assert {(message.attempts, message.crashes, message.last_error) for message in kept} == {(0, 0, None)}
    total: Counter[str] = Counter()
    for pool in pools:
        [stopped] = pool.log("stopped")
        total.update({name: value for name, value in stopped.items() if isinstance(value, int)})
        said = "rate_limits limits queue 'mails', which this pool does not serve; it serves 'default'"
        assert said in pool.log_path.read_text()
    assert total["succeeded"] == len({line.id for line in rig.ends()})
    assert total["failed"] == total["dead"] == total["crashed"] == 0, "contention is never a failure"
    assert total["fetched"] == total["succeeded"] + total["released"]
    rig.assert_no_processes_left()


def shares(pools: tuple[PoolProcess, PoolProcess], starts: list[Line]) -> list[int]:
    return [sum(line.pid in children for line in starts) for children in [pool.children() for pool in pools]]


def hold_a_limit(rig: Rig, pools: tuple[PoolProcess, PoolProcess]) -> None:
    before = sum(pool.header().released for pool in pools)
    limited = rig.enqueue_many("work", [{"seconds": 0.05}] * 60, queue="few")
    rig.wait_drained(limit=60.0, queue="few")
    lines = lines_of(rig, limited)
    assert most_at_once(lines) == 3
    assert min(shares(pools, lines)) > 0, "both had a part in it"
    # About one a job when both share evenly; a pool that asked all the time would meet a thousand.
    released = sum(pool.header().released for pool in pools) - before
    assert released < 180, "who finds no place leaves the queue alone for a while"


def hold_a_limit_per_key(rig: Rig) -> None:
    keys = ("acme", "initech")
    by_key = [rig.enqueue_many("work", [{"seconds": 0.1}] * 3, queue="keyed", concurrency_key=key) for key in keys]
    rig.wait_drained(limit=60.0, queue="keyed")
    for idents in by_key:
        assert most_at_once(lines_of(rig, idents)) == 1


def hold_a_lock(rig: Rig) -> None:
    alone = rig.enqueue_many("work", [{"seconds": 0.1}] * 5, name="nightly", single_instance=True)
    others = rig.enqueue_many("work", [{"seconds": 0.1}] * 10)
    rig.wait_drained(limit=60.0)
    assert most_at_once(lines_of(rig, alone)) == 1
    assert most_at_once(lines_of(rig, others)) > 1


def share_a_queue(rig: Rig, pools: tuple[PoolProcess, PoolProcess]) -> None:
    gate = rig.directory / "gate"
    # One for each child: a pool that misses the bell looks by itself within 0.5 s, and the other would be done by then.
    rig.wait_started(*rig.enqueue_many("again", [{"first": 0, "later": 0, "until": str(gate)}] * 4))
    rig.enqueue_many("work", [{"seconds": 0.005}] * 300)
    gate.touch()
    rig.wait_drained()
    assert min(shares(pools, rig.starts())) > 30


def hold_a_rate(rig: Rig) -> list[str]:
    """What is limited; the rest of it waits when the pools have stopped."""
    limited = rig.enqueue_many("work", [{}] * 20, queue="rated")
    wait_until(lambda: len(lines_of(rig, limited)) == 12, what="as many have run as may")
    free = rig.enqueue_many("work", [{"seconds": 0.01}] * 60)
    rig.wait_drained()
    assert {line.id for line in rig.ends()} >= set(free), "the other queue is not held up"
    return limited


def test_under_saturation_weighted_queues_get_starts_by_their_weights(rig: Rig) -> None:
    rig.witness = True
    often, seldom = 1800, 450
    for queue, count in (("a", often), ("b", seldom)):  # not quick ones, of which a pool leases a thousand ahead
        rig.enqueue_many("work", [{"tag": queue, "seconds": 0.002}] * count, queue=queue)
    start_two_pools(rig, "-Q", "a=8,b=1")
    rig.wait_drained(limit=60.0, queue="a")
    tags = [line.tag for line in sorted(rig.starts(), key=lambda line: line.at)]
    places = [place for place, tag in enumerate(tags) if tag == "a"]
    assert len(places) == often
    saturated = tags[: places[often * 8 // 9] + 1]  # not to the end of a, when one pool may have only b left
    assert saturated.count("a") / saturated.count("b") == pytest.approx(8.0, rel=0.1)
    rig.wait_drained(queue="b", limit=60.0)
    rig.account().assert_once_each()
