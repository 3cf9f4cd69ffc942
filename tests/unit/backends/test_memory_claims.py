"""That memory keeps nothing of claims and posted messages for longer than they live."""

from __future__ import annotations

from support.claims import claim, post
from support.jobs import QUEUE

from jobpool.clock import ManualClock
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.memory.values import Expiries


def test_what_ends_is_told_once_and_at_its_last_time() -> None:
    ends: Expiries[str] = Expiries()
    ends.put("once", 10)
    ends.put("later", 10)
    ends.put("later", 30)
    ends.put("sooner", 30)
    ends.put("sooner", 20)
    ends.put("forgotten", 10)
    ends.forget("forgotten")
    ends.forget("never put")
    assert list(ends.due(9)) == []
    assert [list(ends.due(now)) for now in (10, 20, 29, 30)] == [[("once", 10)], [("sooner", 20)], [], [("later", 30)]]
    assert (list(ends.due(99)), ends._heap) == ([], [])


def test_what_was_told_may_be_put_off_while_the_others_are_told() -> None:
    ends: Expiries[str] = Expiries()
    for name in "abc":
        ends.put(name, 10)
    told = []
    for name, _ in ends.due(10):
        told.append(name)
        ends.put(name, 20)
        ends.forget("c")
    assert told == ["a", "b"]
    assert list(ends.due(20)) == [("a", 20), ("b", 20)]


def test_a_claim_that_is_renewed_again_and_again_takes_the_room_of_one() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    post(backend, life=60.0)
    held = claim(backend, ttl=3600.0)
    for _ in range(500):
        clock.advance(1.0)
        backend.claims.renew(QUEUE, held.id, ttl=3600.0)
    queue = backend._store.queues[QUEUE]
    assert max(len(queue.claim_ends._heap), len(queue.life_ends._heap)) < 100


def test_what_has_ended_takes_no_room() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    for number in range(20):
        post(backend, b"%d" % number, life=60.0 + number)
        post(backend, b"deleted", b"popped", life=60.0)
        held = claim(backend, 2, ttl=60.0)
        backend.claims.delete_many(QUEUE, [held.messages[1].id], held.id)
        backend.claims.pop(QUEUE, 1)
    clock.advance(200.0)
    assert backend.claims.stats(QUEUE).expired == 20
    queue = backend._store.queues[QUEUE]
    assert (queue.claims, backend._store.entries, backend._store.by_id) == ({}, {}, {})
    assert (queue.claim_ends._heap, queue.life_ends._heap) == ([], [])
