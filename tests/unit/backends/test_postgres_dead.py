"""Dead letters under the caps of the URL: the oldest go, a bounded number a statement, and are counted."""

from __future__ import annotations

import pytest
from postgres_rig import Rig, together
from support.jobs import QUEUE, numbered

from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Settled
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres import leases as leases_module


def take(backend: PostgresBackend, count: int) -> list[JobLease]:
    backend.enqueue_many(numbered(count))
    return backend.fetch_many(QUEUE, limit=count, ttl=300.0)


def bury(backend: PostgresBackend, count: int) -> list[JobLease]:
    leases = take(backend, count)
    assert set(backend.settle_many([(lease, Abandon("failed")) for lease in leases])) == {Settled.OK}
    return leases


def test_a_cap_that_is_set_late_is_reached_piece_by_piece(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(rig.open(), 40)
    monkeypatch.setattr(leases_module, "_EVICT_BATCH_MESSAGES", 3)
    capped = rig.open(dead_max=4)
    capped.reap(QUEUE)
    assert (capped.stats(QUEUE).dead, capped.evicted(QUEUE)) == (25, 15)
    while capped.stats(QUEUE).dead > 4:
        capped.reap(QUEUE)
    assert capped.evicted(QUEUE) == 36


def test_several_pools_that_evict_at_once_count_each_letter_once(rig: Rig) -> None:
    bury(rig.open(), 300)
    pools = [rig.open(dead_max=10, timeout=30) for _ in range(6)]
    together(6, lambda number: pools[number].reap(QUEUE))
    pools[0].reap(QUEUE)
    assert (pools[0].stats(QUEUE).dead, pools[0].evicted(QUEUE)) == (10, 290)


def test_an_eviction_that_fails_does_not_hide_the_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = rig.open(dead_max=1)
    leases = take(backend, 2)

    def fail(*_: object) -> None:
        raise BackendUnavailable("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(backend._leases, "_shorten", fail)
        assert backend.settle_many([(lease, Abandon("failed")) for lease in leases]) == [Settled.OK] * 2
    assert backend.stats(QUEUE).dead == 2
    backend.reap(QUEUE)
    assert backend.stats(QUEUE).dead == 1
