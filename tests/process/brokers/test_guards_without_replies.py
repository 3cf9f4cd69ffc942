"""Guards on a network that loses replies: what was granted, done or counted twice over must not show (FAULTS 9, 25)."""

from __future__ import annotations

from collections import Counter

from support.poolrig import Rig
from support.poolrig_brokers import Broker

NOW_AND_THEN = 0.05
"""The share of replies that are lost."""

LIMIT = 2


def test_two_pools_that_lose_replies_of_all_kinds_keep_what_was_promised(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    pools = [rig.start_pool("--concurrency-limit", f"default={LIMIT}", url=host.url) for _ in range(2)]
    for pool in pools:
        pool.wait_ready(2)
    host.proxy.drop_replies(share=NOW_AND_THEN, seed=7)
    keys = [f"order {number}" for number in range(30)]
    rig.enqueue_many("work", [{"seconds": 0.02, "tag": "plain"}] * 60)
    for key in keys:
        rig.enqueue("work", {"seconds": 0.01, "tag": key}, idempotency_key=key)
        rig.enqueue("work", {"seconds": 0.01, "tag": key}, idempotency_key=key)
    rig.wait_drained(60.0)
    assert host.proxy.counts().dropped >= 5
    assert Counter(line.tag for line in rig.ends()) == {"plain": 60, **dict.fromkeys(keys, 1)}
    assert not any(rig.account().duplicates)
    running = most = 0
    for line in sorted(rig.lines(), key=lambda line: line.at):
        running += 1 if line.event == "start" else -1
        most = max(most, running)
    assert most == LIMIT
    assert [pool.stop() for pool in pools] == [0, 0]
