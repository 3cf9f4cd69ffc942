"""What a call costs does not grow with what else is there: the commands that it runs, and how much they answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from redis_rig import Rig, take
from support.jobs import QUEUE, a_job, at

from jobpool.backend import MessageFilter, ReapPolicy, State, Verb
from jobpool.settlement import Abandon, Ack, Nack
from jobpool_backends.redis import RedisBackend

FEW, MANY = 300, 6000

Work = Callable[[RedisBackend], object]


def fill(backend: RedisBackend, count: int, state: State) -> None:
    """So many messages in this state, behind those that a test works on."""
    due = at(4e9) if state is State.DELAYED else None
    first = 0 if state is State.DEAD else 9
    backend.enqueue_many([a_job("x", handler="bulk", priority=first, scheduled_at=due) for _ in range(count)])
    if state is State.DEAD:
        while leases := take(backend, 1000):
            backend.settle_many([(lease, Abandon("failed")) for lease in leases])


def fetch_and_ack(backend: RedisBackend) -> None:
    leases = take(backend, 50)
    assert len(leases) == 50
    assert all(backend.settle_many([(lease, Ack()) for lease in leases]))


def fetch_and_nack(backend: RedisBackend) -> None:
    assert all(backend.settle_many([(lease, Nack(60.0, "boom")) for lease in take(backend, 50)]))


def fetch_and_abandon(backend: RedisBackend) -> None:
    assert all(backend.settle_many([(lease, Abandon("x", "boom")) for lease in take(backend, 50)]))


def fetch_and_reap(backend: RedisBackend) -> None:
    for lease in take(backend, 5):
        backend.forfeit(lease, "SIGSEGV")
    assert len(backend.reap(QUEUE, ReapPolicy(back_off=0.0))) == 5


def look(backend: RedisBackend) -> None:
    backend.stats(QUEUE)
    backend.wait_any([QUEUE], 0.0)
    assert len(backend.list_messages(limit=50)) == 50
    assert backend.count(MessageFilter(queue=QUEUE), cap=10**9) > FEW


def tend(backend: RedisBackend) -> None:
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE, limit=50) == 50


WORK = [fetch_and_ack, fetch_and_nack, fetch_and_abandon, fetch_and_reap, look, tend]


@pytest.mark.parametrize("state", [State.WAITING, State.DELAYED, State.DEAD])
@pytest.mark.parametrize("work", WORK, ids=[work.__name__ for work in WORK])
def test_the_commands_are_the_same_among_few_and_among_many(work: Work, state: State) -> None:
    few, many = (cost(work, state, count) for count in (FEW, MANY))
    assert few == many


def cost(work: Work, state: State, count: int) -> Counter[str]:
    with Rig() as rig:
        backend = rig.open()
        fill(backend, count, state)
        backend.enqueue_many([a_job(number) for number in range(50)])
        work(backend)  # once, so that the server knows the scripts
        backend.enqueue_many([a_job(number) for number in range(50)])
        before = rig.commands()
        work(backend)
        return rig.commands() - before


def test_a_message_costs_its_share_of_a_batch() -> None:
    """A few commands a call, not a message."""
    calls = []
    with Rig() as rig:
        backend = rig.open()
        for count in (10, 1000):
            backend.enqueue_many([a_job(number) for number in range(count)])
            before = rig.commands()
            backend.settle_many([(lease, Ack()) for lease in take(backend, count)])
            calls.append((rig.commands() - before).total())
    few, many = calls
    assert few < 40
    assert many < few + 25  # bodies come in pieces
