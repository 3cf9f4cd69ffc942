"""Values that end by themselves, and that memory keeps none of them for longer."""

from __future__ import annotations

from support.jobs import QUEUE, a_job, new_lease, numbered

from jobpool.broker.values import MessageFilter, Verb
from jobpool.clock import ManualClock
from jobpool.message.guards import Guards, Hold, Rate
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.memory.values import Expiring
from jobpool_backends.shared import DeadCaps


def test_a_value_ends_at_its_time() -> None:
    kept: Expiring[str] = Expiring()
    kept.put("a", "one", 10)
    assert kept.get("a", 9) == "one"
    assert kept.get("a", 10) is None
    assert kept._values == {}


def test_put_again_it_ends_when_it_was_last_said_to() -> None:
    kept: Expiring[str] = Expiring()
    kept.put("longer", "one", 10)
    kept.put("longer", "two", 30)
    kept.put("shorter", "one", 30)
    kept.put("shorter", "two", 10)
    assert dict(kept.items(9)) == {"longer": "two", "shorter": "two"}
    assert dict(kept.items(10)) == {"longer": "two"}
    assert dict(kept.items(30)) == {}


def test_popped_it_is_gone_once() -> None:
    kept: Expiring[str] = Expiring()
    kept.put("a", "one", 10)
    assert (kept.pop("a", 5), kept.pop("a", 5), kept.pop("b", 5)) == ("one", None, None)
    kept.put("a", "two", 20)
    assert kept.get("a", 10) == "two"  # the end of the first was not the end of this one


def test_what_has_ended_takes_no_room() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
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
    assert backend.keys._records._values == {}


def test_leases_that_were_reaped_leave_no_places() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    backend.enqueue_many(numbered(3))
    for number, lease in enumerate(backend.fetch_many(QUEUE, limit=3, ttl=5.0)):
        assert backend.keys.begin_many([(lease, Guards(holds=(Hold(f"job:{number}"),)))])[0]
    clock.advance(5.0)
    assert len(backend.reap(QUEUE)) == 3
    assert backend._store.places._held == {}


def test_a_value_that_is_put_again_and_again_takes_the_room_of_one() -> None:
    kept: Expiring[int] = Expiring()
    for number in range(1000):
        kept.put("heartbeat", number, 10_000 + number)
    assert len(kept._ends._heap) < 100
    assert kept.get("heartbeat", 10_998) == 999
    assert kept.get("heartbeat", 10_999) is None


def test_the_line_of_the_dead_forgets_who_was_raised() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock, caps=DeadCaps(most=2))
    old, other = backend.enqueue_many(numbered(2))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.abandon(lease, "hopeless")
    for _ in range(500):
        clock.advance(1.0)
        [lease] = backend.fetch_many(QUEUE, limit=1)
        backend.abandon(lease, "hopeless")
        backend.bulk(MessageFilter(ids=(other,)), Verb.RETRY)
    assert len(backend._store.queues[QUEUE].dead) < 100
    backend.enqueue_many(numbered(2))
    for lease in backend.fetch_many(QUEUE, limit=3):
        clock.advance(1.0)
        backend.abandon(lease, "hopeless")
    assert backend.evicted(QUEUE) == 2
    assert backend.inspect(old) is None
