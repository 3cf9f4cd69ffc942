"""Values that end by themselves, and that memory keeps none of them for longer."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from support.claims import claim, post
from support.jobs import QUEUE, a_job, at, new_lease, numbered

from jobpool.clock import ManualClock
from jobpool.message.guards import Guards, Hold, Rate
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.memory.keys import MemoryKeys
from jobpool_backends.memory.values import Expiries, Expiring


@pytest.fixture
def backend(clock: ManualClock) -> MemoryBackend:
    return MemoryBackend(clock=clock)


def test_a_value_that_was_taken_out_has_no_end_any_more() -> None:
    kept: Expiring[str] = Expiring()
    kept.put("a", "one", 10)
    kept.put("b", "one", 6)
    assert (kept.pop("a", 5), kept.pop("b", 5), kept.get("b", 6)) == ("one", "one", None)
    kept.put("a", "two", 20)
    assert kept.get("a", 10) == "two"


def test_what_has_ended_takes_no_room(backend: MemoryBackend, clock: ManualClock) -> None:
    for number in range(20):
        guards = Guards(f"key-{number}", 50.0, (Hold(f"job:{number}"),), (Rate(f"concurrency:{number}", 9, 10.0),))
        lease = new_lease(backend, number, unique=True, idempotency_key=f"key-{number}")
        assert backend.keys.begin_many([(lease, guards)])[0]
        assert backend.ack(lease.guarded(guards))
    backend.keys.put_records("pools", {f"pool-{number}": b"x" for number in range(20)}, 50.0)
    clock.advance(70.0)
    backend.enqueue(a_job(unique=True, idempotency_key="another"))
    backend.keys.get_record("pools", "any")
    backend.keys.first_run(QUEUE, "another")
    backend.keys.take(QUEUE, Rate("another", 1), "token")
    places = backend._store.places
    assert (len(places.done._values), len(places._starts), len(places._held)) == (1, 1, 0)
    assert (len(backend._store.acked._values), len(backend._store.unique)) == (0, 1)
    assert cast(MemoryKeys, backend.keys)._records._values == {}


def test_leases_that_were_reaped_leave_no_places(backend: MemoryBackend, clock: ManualClock) -> None:
    backend.enqueue_many(numbered(3))
    for number, lease in enumerate(backend.fetch_many(QUEUE, limit=3, ttl=5.0)):
        assert backend.keys.begin_many([(lease, Guards(holds=(Hold(f"job:{number}"),)))])[0]
    clock.advance(5.0)
    assert len(backend.reap(QUEUE)) == 3
    assert backend._store.places._held == {}


def test_a_turned_clock_is_noticed_by_who_waits(backend: MemoryBackend, clock: ManualClock) -> None:
    backend.enqueue(a_job(scheduled_at=at(clock.wall() + 3600)))
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(backend.wait_any([QUEUE], 30.0)))
    thread.start()
    clock.advance(3600.0)
    thread.join(10.0)
    assert found == [QUEUE]


@pytest.mark.parametrize("seconds", [61.0, 601.0])
def test_what_need_not_be_remembered_is_dropped(backend: MemoryBackend, clock: ManualClock, seconds: float) -> None:
    backend.enqueue_many([a_job(identifier="a"), a_job(identifier="b")])
    for lease in backend.fetch_many(QUEUE, limit=2):
        backend.ack(lease)
    clock.advance(seconds)
    lease = new_lease(backend, identifier="c")
    backend.ack(lease)
    assert len(backend._calls._values) == 1
    assert len(backend._store.ended._values) == (3 if seconds < 600 else 1)


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


def test_a_claim_that_is_renewed_again_and_again_takes_the_room_of_one(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    post(backend, life=60.0)
    held = claim(backend, ttl=3600.0)
    for _ in range(500):
        clock.advance(1.0)
        backend.claims.renew(QUEUE, held.id, ttl=3600.0)
    queue = backend._store.queues[QUEUE]
    assert max(len(queue.claim_ends._heap), len(queue.life_ends._heap)) < 100


def test_what_has_ended_of_claims_and_posts_takes_no_room(backend: MemoryBackend, clock: ManualClock) -> None:
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
