"""What is memory's own: its lazy heaps, and that it forgets."""

from __future__ import annotations

import threading

import pytest
from support.jobs import QUEUE, a_job, at, new_lease, numbered

from jobpool.broker.values import MessageFilter, Verb
from jobpool.clock import ManualClock
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.memory import MemoryBackend


def test_heaps_skip_what_was_deleted() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    first, second = backend.enqueue_many(numbered(2))
    later, latest = backend.enqueue_many([a_job(scheduled_at=at(clock.wall() + wait)) for wait in (5, 6)])
    backend.bulk(MessageFilter(ids=(first, later)), Verb.DELETE)
    clock.advance(6.0)
    assert backend.stats(QUEUE).waiting == 2
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=9)] == [second, latest]


def test_a_turned_clock_is_noticed_by_who_waits() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    backend.enqueue(a_job(scheduled_at=at(clock.wall() + 3600)))
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(backend.wait_any([QUEUE], 30.0)))
    thread.start()
    clock.advance(3600.0)
    thread.join(10.0)
    assert found == [QUEUE]


def test_many_threads_lose_nothing() -> None:
    backend = MemoryBackend()
    known = [ident for _ in range(10) for ident in backend.enqueue_many(numbered(100))]
    seen: list[str] = []

    def work() -> None:
        while leases := backend.fetch_many(QUEUE, limit=3):
            answers = backend.settle_many([(lease, Ack()) for lease in leases])
            assert answers == [Settled.OK] * len(leases)
            seen.extend(lease.id for lease in leases)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(known)


@pytest.mark.parametrize("seconds", [61.0, 601.0])
def test_what_need_not_be_remembered_is_dropped(seconds: float) -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    backend.enqueue_many([a_job(identifier="a"), a_job(identifier="b")])
    for lease in backend.fetch_many(QUEUE, limit=2):
        backend.ack(lease)
    clock.advance(seconds)
    lease = new_lease(backend, identifier="c")
    backend.ack(lease)
    assert len(backend._calls._values) == 1
    assert len(backend._store.ended._values) == (3 if seconds < 600 else 1)
