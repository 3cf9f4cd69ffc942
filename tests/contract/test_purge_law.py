"""Where waiting messages cannot be deleted by a filter, all of a queue can, or all in a state; the rest is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered
from support.looks import picture

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import Unsupported
from jobpool.message.lease import JobLease

pytestmark = [pytest.mark.needs("leases"), pytest.mark.lacks("deletes_live")]

MAILS = "mails"


@pytest.fixture
def held(harness: Harness, backend: QueueBackend) -> JobLease:
    """Two dead, three waiting, two delayed and one leased message, and one that waits in another queue; the lease."""
    backend.enqueue_many(numbered(3))
    one, two, lease = backend.fetch_many(QUEUE, limit=3)
    for dying in (one, two):
        backend.abandon(dying, "hopeless")
    backend.enqueue_many([*numbered(3), a_job(queue=MAILS)])
    backend.enqueue_many(numbered(2, scheduled_at=at(harness.now() + 20.0)))
    return lease


def counts(backend: QueueBackend) -> tuple[int, ...]:
    """Waiting, delayed, leased and dead ones, and those of the other queue."""
    stats = backend.stats(QUEUE)
    return stats.waiting, stats.delayed, stats.leased, stats.dead, backend.stats(MAILS).pending


PURGES = [
    pytest.param((), 7, (0, 0, 1, 0, 1), id="all"),
    pytest.param(tuple(State), 7, (0, 0, 1, 0, 1), id="all states"),
    pytest.param((State.WAITING,), 3, (0, 2, 1, 2, 1), id="waiting"),
    pytest.param((State.DELAYED,), 2, (3, 0, 1, 2, 1), id="delayed"),
    pytest.param((State.WAITING, State.DELAYED), 5, (0, 0, 1, 2, 1), id="live"),
    pytest.param((State.DEAD,), 2, (3, 2, 1, 0, 1), id="dead"),
    pytest.param((State.LEASED,), 0, (3, 2, 1, 2, 1), id="leased"),
]


@pytest.mark.parametrize(("states", "deleted", "then"), PURGES)
def test_all_of_a_queue_or_of_its_states_are_deleted_and_never_what_is_leased(
    backend: QueueBackend, held: JobLease, states: tuple[State, ...], deleted: int, then: object
) -> None:
    assert counts(backend) == (3, 2, 1, 2, 1)
    where = MessageFilter(queue=QUEUE, states=states)
    assert backend.bulk(where, Verb.DELETE) == deleted
    assert counts(backend) == then
    assert backend.bulk(where, Verb.DELETE) == 0
    assert backend.ack(held)


def test_what_was_purged_never_comes(harness: Harness, backend: QueueBackend, held: JobLease) -> None:
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == 7
    harness.advance(20.0)
    assert backend.fetch_many(QUEUE, limit=9) == []
    assert backend.ack(held)
    backend.enqueue(a_job("after"))
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=9)] == ["after"]


def test_a_purge_goes_up_to_its_limit(backend: QueueBackend, held: JobLease) -> None:
    done = []
    while changed := backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE, limit=2):
        done.append(changed)
    assert max(done) <= 2
    assert sum(done) == 7
    assert counts(backend) == (0, 0, 1, 0, 1)
    assert backend.ack(held)


FIELDS: list[dict[str, Any]] = [
    {"handler": "report"},
    {"text": "report"},
    {"older_than": 0.0},
    {"newer_than": 100.0},
    {"ids": ("a", "b")},
]


def test_any_other_filter_that_may_mean_waiting_ones_is_refused_and_deletes_nothing(
    backend: QueueBackend, held: JobLease
) -> None:
    before = picture(backend, QUEUE, MAILS)
    for fields, states in product(FIELDS, [(), (State.WAITING,), (State.WAITING, State.DEAD)]):
        with pytest.raises(Unsupported, match="keeps_records"):
            backend.bulk(MessageFilter(queue=QUEUE, states=states, **fields), Verb.DELETE)
        assert picture(backend, QUEUE, MAILS) == before, (fields, states)
    assert backend.ack(held)
