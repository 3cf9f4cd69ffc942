"""Dead letters under the caps of the URL: the oldest go, a bounded number a statement, and are counted."""

from __future__ import annotations

import pytest
from postgres_rig import Rig, together
from support.jobs import QUEUE, a_job, numbered

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Settled
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres import leases as leases_module
from jobpool_backends.postgres.connection import read_address
from jobpool_backends.shared import DeadCaps


def take(backend: PostgresBackend, count: int) -> list[JobLease]:
    backend.enqueue_many(numbered(count))
    return backend.fetch_many(QUEUE, limit=count, ttl=300.0)


def bury(backend: PostgresBackend, count: int) -> list[JobLease]:
    leases = take(backend, count)
    assert set(backend.settle_many([(lease, Abandon("failed")) for lease in leases])) == {Settled.OK}
    return leases


def test_beyond_dead_max_the_oldest_go_whatever_their_place_in_the_queue(rig: Rig) -> None:
    backend = rig.open(dead_max=2)
    known = backend.enqueue_many([a_job(identifier=f"order-{number}") for number in range(5)])
    for lease in reversed(backend.fetch_many(QUEUE, limit=5, ttl=300.0)):
        backend.abandon(lease, "failed")
    assert [message.id for message in backend.list_messages()] == known[:2]  # those that died last
    assert backend.evicted(QUEUE) == 3
    assert backend.enqueue(a_job(identifier="order-4")) == "order-4"  # its end is remembered
    assert backend.stats(QUEUE).pending == 0


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


def test_the_caps_are_read_from_the_url_or_by_keyword() -> None:
    assert read_address("postgresql://here/jobs").caps == DeadCaps()
    url = "postgresql://here/jobs?dead_max=100&dead_max_age=1.5"
    assert read_address(url).caps == DeadCaps(100, 1_500_000)
    assert read_address(url, {"dead_max": 7}).caps == DeadCaps(7, 1_500_000)


@pytest.mark.parametrize(("name", "value"), [("dead_max", "2.5"), ("dead_max", -1), ("dead_max_age", "soon")])
def test_a_cap_that_is_none_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"postgresql:// takes option {name} as a .* not {value!r}"):
        read_address("postgresql://here/jobs", {name: value})
