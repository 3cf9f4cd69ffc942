"""Dead letters are never more, nor older, than the caps allow; and without caps all are kept."""

from __future__ import annotations

from typing import Any

import pytest
from support.claims import found
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered
from support.looks import a_lease

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, ReapPolicy, State, Verb
from jobpool.message.settlement import Abandon, Settled

pytestmark = pytest.mark.needs("leases", "dead_caps")


def evicted(backend: Any, queue: str = QUEUE) -> int:
    count: int = backend.evicted(queue)
    return count


def die(harness: Harness, backend: QueueBackend, count: int) -> list[str]:
    """So many new messages, dead one after the other, the last first, a second apart; their ids in that order."""
    known = backend.enqueue_many(numbered(count))
    for lease in reversed(backend.fetch_many(QUEUE, limit=count)):
        backend.abandon(lease, "hopeless")
        harness.advance(1.0)
    return known[::-1]


def left(backend: QueueBackend) -> set[str]:
    return {message.id for message in backend.list_messages(MessageFilter(states=(State.DEAD,)), limit=100)}


def test_without_caps_all_are_kept(harness: Harness, backend: QueueBackend) -> None:
    known = die(harness, backend, 20)
    harness.advance(366 * 86400.0)
    backend.reap(QUEUE)
    assert left(backend) == set(known)
    assert evicted(backend) == 0


@pytest.mark.spans
def test_beyond_the_count_the_oldest_go_and_are_counted(harness: Harness) -> None:
    backend = harness.open(dead_max=3)
    known = die(harness, backend, 5)
    assert left(backend) == set(known[2:])
    assert (backend.stats(QUEUE).dead, evicted(backend), evicted(backend, "mails")) == (3, 2, 0)
    assert backend.inspect(known[0]) is None


def test_the_count_is_of_each_queue(harness: Harness) -> None:
    backend = harness.open(dead_max=1)
    backend.enqueue_many([a_job(queue=f"q{number % 2}") for number in range(4)])
    for queue in ("q0", "q1"):
        for lease in backend.fetch_many(queue, limit=2):
            backend.abandon(lease, "hopeless")
    assert [backend.stats(queue).dead for queue in ("q0", "q1")] == [1, 1]
    assert [evicted(backend, queue) for queue in ("q0", "q1")] == [1, 1]


def test_the_count_holds_for_a_whole_batch(harness: Harness) -> None:
    backend = harness.open(dead_max=2)
    backend.enqueue_many(numbered(8))
    leases = backend.fetch_many(QUEUE, limit=8)
    assert backend.settle_many([(lease, Abandon("hopeless")) for lease in leases]) == [Settled.OK] * 8
    assert (backend.stats(QUEUE).dead, evicted(backend)) == (2, 6)


@pytest.mark.needs("exact_crashes")
@pytest.mark.lacks("native_reap")
def test_what_dies_by_the_crash_limit_counts_too(harness: Harness) -> None:
    backend = harness.open(dead_max=1)
    backend.enqueue_many(numbered(3))
    for _ in range(2):
        backend.fetch_many(QUEUE, limit=3, ttl=1.0)
        harness.expire_leases(1.0)
        backend.reap(QUEUE, ReapPolicy(max_crashes=1, back_off=0.0))
    assert (backend.stats(QUEUE).dead, backend.stats(QUEUE).pending, evicted(backend)) == (1, 0, 2)


def test_beyond_the_age_they_go_when_something_dies(harness: Harness) -> None:
    backend = harness.open(dead_max_age=60.0)
    backend.enqueue_many(numbered(3))
    one, two, three = backend.fetch_many(QUEUE, limit=3, ttl=1000.0)
    backend.abandon(one, "hopeless")
    harness.advance(60.0 - harness.tick)
    backend.abandon(two, "hopeless")
    assert (left(backend), evicted(backend)) == ({one.id, two.id}, 0)
    harness.advance(harness.tick)
    backend.abandon(three, "hopeless")
    assert (left(backend), evicted(backend)) == ({two.id, three.id}, 1)


@pytest.mark.lacks("native_reap")
def test_beyond_the_age_they_go_with_a_reap(harness: Harness) -> None:
    backend = harness.open(dead_max_age=60.0)
    die(harness, backend, 4)
    harness.advance(58.0)
    backend.reap(QUEUE)
    assert (len(left(backend)), evicted(backend)) == (1, 3)


def test_what_was_raised_in_time_is_not_evicted(harness: Harness) -> None:
    backend = harness.open(dead_max=2, dead_max_age=60.0)
    known = die(harness, backend, 2)
    backend.bulk(MessageFilter(ids=(known[0],)), Verb.RESUME)
    others = backend.enqueue_many(numbered(2))
    for lease in backend.fetch_many(QUEUE, limit=9):
        if lease.id in others:
            backend.abandon(lease, "hopeless")
            harness.advance(1.0)
    assert left(backend) == set(others)
    assert found(backend, known[0]).state is State.LEASED


@pytest.mark.needs("key_store")
def test_what_was_evicted_gives_its_key_free(harness: Harness) -> None:
    backend = harness.open(dead_max=1)
    unique = a_job(unique=True, idempotency_key="order-17")
    first = backend.enqueue(unique)
    for lease in (a_lease(backend), *backend.fetch_many(QUEUE, limit=1)):
        backend.abandon(lease, "hopeless")
    assert backend.enqueue(unique) == first
    harness.advance(1.0)
    die(harness, backend, 1)
    assert backend.enqueue(unique) != first


def test_an_id_that_was_evicted_is_remembered(harness: Harness) -> None:
    """Its producer may still be retrying the enqueue."""
    backend = harness.open(dead_max=1)
    backend.enqueue(a_job(identifier="order-17"))
    backend.abandon(a_lease(backend), "hopeless")
    harness.advance(1.0)
    die(harness, backend, 1)
    assert backend.enqueue(a_job(identifier="order-17")) == "order-17"
    assert backend.stats(QUEUE).pending == 0
