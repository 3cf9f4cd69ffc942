"""The queue of a run is emptied of what the run has put there; what others have put there is told, and stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from msgspec.structs import replace

from jobpool.broker import filters
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import Unsupported
from jobpool.message.definition import JobDefinition
from jobpool_torture import leftovers
from jobpool_torture.ledger import Line
from jobpool_torture.leftovers import empty, own_ids

QUEUE = "torture-1"
OURS = {"a", "b", "c"}


@pytest.fixture
def backend() -> Iterator[QueueBackend]:
    backend = open_backend("memory://")
    yield backend
    backend.close()


def put(backend: QueueBackend, *idents: str, queue: str = QUEUE) -> None:
    backend.enqueue_many([JobDefinition("work", queue=queue, identifier=ident) for ident in idents])


def emptied(backend: QueueBackend, limit: float = 0.0) -> str:
    return empty(backend, QUEUE, OURS, lambda _: None, limit)


def test_the_ledger_knows_what_was_enqueued_and_what_has_run() -> None:
    lines = [Line("try", "a"), Line("enq", "b", tag="a"), Line("start", "c"), Line("follow", "c", tag="d")]
    assert own_ids([*lines, Line("fetched", "e"), Line("settled", "e")]) == {"a", "b", "c", "d"}


def test_dead_and_waiting_messages_are_deleted_and_other_queues_are_not_touched(
    backend: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "PAGE_MESSAGES", 2)
    monkeypatch.setattr(filters, "PAGE_MESSAGES", 2)
    monkeypatch.setattr(leftovers, "MAX_DELETED_MESSAGES", 1)
    put(backend, *OURS)
    put(backend, "x", queue="other")
    for lease in backend.fetch_many(QUEUE, limit=2):
        backend.abandon(lease)
    assert emptied(backend) == ""
    assert backend.stats(QUEUE).dead == backend.stats(QUEUE).pending == 0
    assert backend.stats("other").waiting == 1


def test_a_strangers_messages_stay_and_are_told(backend: QueueBackend) -> None:
    put(backend, "x")
    (lease,) = backend.fetch_many(QUEUE, limit=1)
    backend.abandon(lease)
    put(backend, "a", "y")
    assert emptied(backend) == (
        f"queue {QUEUE} still holds 1 waiting, 1 dead, 2 of them not this run's (x, y):"
        f" `jobpool purge -Q {QUEUE}` deletes what nobody holds"
    )


def test_the_lease_of_a_pool_that_was_killed_is_waited_for(backend: QueueBackend) -> None:
    put(backend, "a", "b")
    backend.fetch_many(QUEUE, limit=1, ttl=0.2)
    rested: list[float] = []
    assert empty(backend, QUEUE, OURS, rested.append, 30.0) == ""
    assert set(rested) == {leftovers.LEFTOVERS_LOOK_S}
    assert backend.stats(QUEUE).pending == 0


def test_what_is_held_for_too_long_is_told(backend: QueueBackend) -> None:
    put(backend, "a", "b")
    backend.fetch_many(QUEUE, limit=1, ttl=60.0)
    assert emptied(backend).startswith(f"queue {QUEUE} still holds 1 leased: ")


class ListsNoLive:
    """A broker that deletes live messages all or none."""

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend
        self.capabilities = replace(backend.capabilities, lists_live=False, keeps_records=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        if where.ids and where.states != (State.DEAD,):
            raise Unsupported("single messages that are not dead cannot be found")
        return self._backend.bulk(where, verb, limit=limit)


def test_where_live_messages_cannot_be_told_apart_strangers_dead_letters_stay(backend: QueueBackend) -> None:
    put(backend, "x", "a")
    for lease in backend.fetch_many(QUEUE, limit=2):
        backend.abandon(lease)
    put(backend, "b", "y")
    left = emptied(cast(QueueBackend, ListsNoLive(backend)))
    assert "still holds 1 dead, 1 of them not this run's (x)" in left
