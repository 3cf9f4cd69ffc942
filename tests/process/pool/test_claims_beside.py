"""A pool and claims at work on one queue: no message is ever in two hands, and none is lost between them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.poolrig import Rig
from support.waiting import wait_until

from jobpool import Claim, Jobs, Queue

JOBS = 300
POSTS = 60


@pytest.mark.brokers
def test_a_pool_and_three_who_claim_share_a_queue(rig: Rig) -> None:
    queue = Jobs(backend=rig.backend).queue("default")
    pool = rig.start_pool(workers=2).wait_ready(2)
    posts = queue.post(range(POSTS))
    jobs = rig.enqueue_many("work", [{"seconds": 0.002}] * JOBS)
    wait_until(lambda: bool(rig.starts()))
    with ThreadPoolExecutor(3) as hands:
        by_hand = Counter(ident for taken in hands.map(lambda _: work(queue), range(3)) for ident in taken)
    rig.wait_drained()
    wait_until(lambda: queue.stats().total == 0)
    assert pool.stop() == 0
    by_pool = Counter(line.id for line in rig.starts())
    assert by_hand + by_pool == Counter([*posts, *jobs])
    assert not by_pool.keys() & set(posts)
    assert rig.dead() == {}


def work(queue: Queue) -> list[str]:
    """Claim until nothing is free: every third claim is released, the others are worked off."""
    done: list[str] = []
    for number, claim in enumerate(iter(lambda: queue.claim(5), None)):
        done += give_back(claim) if number % 3 == 2 else handle(claim)
    return done


def give_back(claim: Claim) -> list[str]:
    claim.release()
    return []


def handle(claim: Claim) -> list[str]:
    with claim:
        return [message.id for message in claim]
