"""Limits over two real pools: places, rates, and the shares of weighted queues."""

from __future__ import annotations

import pytest
from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

from jobpool_torture.ledger import Line


def start_two_pools(rig: Rig, *flags: str, workers: int) -> tuple[PoolProcess, PoolProcess]:
    first, second = (rig.start_pool(*flags, workers=workers) for _ in range(2))
    return first.wait_ready(workers), second.wait_ready(workers)


def most_at_once(lines: list[Line]) -> int:
    """How many ran at the same time, at most."""
    most = running = 0
    for line in sorted(lines, key=lambda line: line.at):
        running += 1 if line.event == "start" else -1
        most = max(most, running)
    return most


@pytest.mark.brokers
def test_no_more_than_the_limit_run_at_a_time_over_two_pools(rig: Rig) -> None:
    pools = start_two_pools(rig, "--concurrency-limit", "default=3", workers=2)
    rig.enqueue_many("work", [{"seconds": 0.05}] * 60)
    rig.wait_drained(limit=60.0)
    assert most_at_once(rig.lines()) == 3
    rig.account().assert_once_each()
    assert [pool.stop() for pool in pools] == [0, 0]
    [one], [two] = (pool.log("stopped") for pool in pools)
    assert min(one["succeeded"], two["succeeded"]) > 0, "both had a part in it"
    released = one.get("released", 0) + two.get("released", 0)
    # About one a job when both share evenly; a pool that asked all the time would meet a thousand.
    assert released < 180, "who finds no place leaves the queue alone for a while"


def test_a_limit_per_key_is_each_keys_own(rig: Rig) -> None:
    start_two_pools(rig, "--concurrency-per-key", "default=1", workers=2)
    for key in ("acme", "initech"):
        rig.enqueue_many("work", [{"seconds": 0.1, "tag": key}] * 3, concurrency_key=key)
    rig.wait_drained(limit=60.0)
    for key in ("acme", "initech"):
        assert most_at_once([line for line in rig.lines() if line.tag == key]) == 1
    rig.account().assert_once_each()


@pytest.mark.brokers
def test_a_rate_is_held_over_two_pools_and_what_waits_is_unharmed(rig: Rig) -> None:
    flags = ("-Q", "default,other", "--rate-limit", "default=6")
    pools = start_two_pools(rig, *flags, workers=2)
    limited = rig.enqueue_many("work", [{}] * 20)
    wait_until(lambda: len(rig.ends()) == 6, what="as many have run as may")
    free = rig.enqueue_many("work", [{"seconds": 0.01}] * 60, queue="other")
    rig.wait_drained(queue="other")
    assert {line.id for line in rig.starts()} >= set(free), "the other queue is not held up"
    started = [line.id for line in rig.starts() if line.id in limited]
    assert len(started) == 6, "exactly so many"
    assert [pool.stop() for pool in pools] == [0, 0]
    counts = rig.stats()
    assert (counts.waiting, counts.delayed, counts.leased, counts.dead) == (14, 0, 0, 0)
    kept = [rig.inspect(ident) for ident in set(limited).difference(started)]
    assert {(message.attempts, message.crashes, message.last_error) for message in kept} == {(0, 0, None)}


def test_under_saturation_weighted_queues_get_starts_by_their_weights(rig: Rig) -> None:
    each = 3600
    for queue in ("a", "b"):
        rig.enqueue_many("work", [{"tag": queue}] * each, queue=queue)
    start_two_pools(rig, "-Q", "a=8,b=1", workers=2)
    rig.wait_drained(limit=60.0, queue="a")
    tags = [line.tag for line in sorted(rig.starts(), key=lambda line: line.at)]
    places = [place for place, tag in enumerate(tags) if tag == "a"]
    assert len(places) == each
    saturated = tags[: places[each * 8 // 9] + 1]  # not to the end of a, when one pool may have only b left
    assert saturated.count("a") / saturated.count("b") == pytest.approx(8.0, rel=0.1)
    rig.wait_drained(queue="b", limit=60.0)
    rig.account().assert_once_each()


def test_a_limit_for_a_queue_that_is_not_served_is_said_at_the_start(rig: Rig) -> None:
    pool = rig.run_pool("--rate-limit", "mails=6", "--until-empty")
    assert pool.process.returncode == 0
    assert "rate_limits limits queue 'mails', which this pool does not serve; it serves 'default'" in (
        pool.log_path.read_text()
    )
