"""What claims cost: the commands of a call, among few messages and claims and among many; and for pools nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from redis_rig import Rig, take
from support.claims import a_post, claim
from support.jobs import QUEUE, a_job

from jobpool.broker.claim_store import Deleted
from jobpool.message.settlement import Abandon, Ack
from jobpool_backends.redis import RedisBackend

Work = Callable[[RedisBackend], object]

FEW, MANY = 60, 2000
"""Messages; a twentieth as many claims."""


def post_some(backend: RedisBackend, count: int, **fields: float) -> list[str]:
    return backend.claims.post(QUEUE, [a_post(**fields) for _ in range(count)])


def fill_free(backend: RedisBackend, count: int) -> None:
    post_some(backend, count)


def fill_living(backend: RedisBackend, count: int) -> None:
    post_some(backend, count, life=1000.0)


def fill_delayed(backend: RedisBackend, count: int) -> None:
    post_some(backend, count, delay=900.0, life=1000.0)


def fill_claims(backend: RedisBackend, count: int) -> None:
    post_some(backend, count)
    while backend.claims.claim(QUEUE, limit=20, ttl=600.0, grace=60.0):
        pass


def fill_empty_claims(backend: RedisBackend, count: int) -> None:
    for ident in post_some(backend, count // 20):
        held = claim(backend, 1)
        backend.claims.delete_many(QUEUE, [ident], held.id)


def fill_jobs(backend: RedisBackend, count: int) -> None:
    backend.enqueue_many([a_job(priority=9) for _ in range(count)])


def fill_leases(backend: RedisBackend, count: int) -> None:
    fill_jobs(backend, count)
    take(backend, count)


def fill_dead(backend: RedisBackend, count: int) -> None:
    fill_jobs(backend, count)
    while leases := take(backend, 1000):
        backend.settle_many([(lease, Abandon("failed")) for lease in leases])


FILLS = [fill_free, fill_living, fill_delayed, fill_claims, fill_empty_claims, fill_jobs, fill_leases, fill_dead]


def one_round(backend: RedisBackend) -> None:
    """Everything that is done to one claim, and the counts."""
    held = claim(backend, 10)
    assert held.count == 10
    backend.claims.get(QUEUE, held.id)
    backend.claims.renew(QUEUE, held.id, ttl=300.0)
    gone = [message.id for message in held.messages[:5]]
    assert backend.claims.delete_many(QUEUE, gone, held.id) == [Deleted.DONE] * 5
    assert backend.claims.release(QUEUE, held.id) == 5
    assert len(backend.claims.pop(QUEUE, 5)) == 5
    assert len(backend.claims.list_free(QUEUE, limit=5)) == 5
    backend.claims.stats(QUEUE)
    backend.stats(QUEUE)
    backend.reap(QUEUE)


@pytest.mark.parametrize("fill", FILLS, ids=[fill.__name__ for fill in FILLS])
def test_the_commands_are_the_same_among_few_and_among_many(fill: Callable[[RedisBackend, int], None]) -> None:
    assert cost(fill, FEW) == cost(fill, MANY)


def cost(fill: Callable[[RedisBackend, int], None], count: int) -> Counter[str]:
    with Rig() as rig:
        backend = rig.open()
        fill(backend, count)
        post_some(backend, 30)
        one_round(backend)  # once, so that the server knows the scripts
        post_some(backend, 30)
        return rig.spent(lambda: one_round(backend))


def test_a_message_costs_its_share_of_a_claim(rig: Rig) -> None:
    """20 messages are claimed, renewed and deleted with the commands of one, and a look at the length of each body."""
    backend = rig.open()
    post_some(backend, 100)
    handled = [rig.spent(lambda limit=limit: handle(backend, limit)) for limit in (1, 1, 20)]
    assert handled[2] - handled[1] == Counter(hstrlen=2 * 19)
    assert handled[2].total() < 60 + 2 * 20


def handle(backend: RedisBackend, limit: int) -> None:
    held = claim(backend, limit)
    backend.claims.renew(QUEUE, held.id, ttl=60.0)
    backend.claims.delete_many(QUEUE, [message.id for message in held.messages], held.id)


def test_pools_run_the_same_commands_whatever_is_posted_and_claimed(rig: Rig) -> None:
    backend = rig.open()

    def work() -> None:
        backend.enqueue_many([a_job(priority=1) for _ in range(20)])
        leases = take(backend, 20)
        assert len(leases) == 20
        assert all(backend.renew_many(leases, 30.0))
        assert all(backend.settle_many([(lease, Ack()) for lease in leases]))

    backend.enqueue_many([a_job(priority=9)])  # there is always something left
    work()
    before = rig.spent(work)
    fill_living(backend, 50)
    claim(backend, 20)
    fill_delayed(backend, 50)
    backend.enqueue_many([a_job(priority=2)])
    claim(backend, 1)
    assert rig.spent(work) == before


def test_a_look_at_a_queue_without_claims_asks_once_whether_there_are_any(rig: Rig) -> None:
    backend = rig.open()
    backend.enqueue(a_job())
    backend.stats(QUEUE)
    told = rig.spent(lambda: backend.stats(QUEUE))
    assert told == Counter(evalsha=1, time=1, exists=1, zcard=4, zrange=2, hget=1)
