"""What a call costs in statements: a plain job pays nothing for keys, and a batch of keys is one transaction."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from sqlite_explained import tracing
from support.claims import claim, ids, post
from support.jobs import QUEUE, a_job, new_lease, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State
from jobpool.clock import ManualClock
from jobpool.message.guards import Guards, Hold, Rate
from jobpool.message.settlement import Abandon, Ack, Nack, Release
from jobpool_backends.sqlite import SqliteBackend

Open = Callable[..., SqliteBackend]

KEY_TABLES = ("spent", "done", "holds", "starts", "records", "logs")
OF_CLAIMS = ("claims", "posts", "ends_at", "state = 4", "state = 5")
KNOWN_IDS = "SELECT seq, queue, state, id, given, ends_at FROM messages"
"""The look at the ids of what is enqueued, which tells what has ended, too."""


@pytest.fixture
def backend(open_sqlite: Open, clock: ManualClock) -> SqliteBackend:
    """On a clock that stands still, and warm: what is swept once a second has been."""
    backend = open_sqlite(clock=clock)
    lease = new_lease(backend)
    backend.ack(lease)
    backend.keys.forget(QUEUE, "any")
    post(backend)
    backend.claims.pop(QUEUE, 1)
    return backend


def test_plain_jobs_execute_not_one_statement_for_keys_or_claims(backend: SqliteBackend) -> None:
    """The numbers are those from before there were any, and posts beside them change nothing: they may never grow."""
    post(backend, b"claimed")
    claim(backend, 1)
    post(backend, b"free", life=60.0)
    with tracing(backend) as statements:
        backend.enqueue_many(numbered(4))
    assert len(statements) == 13  # BEGIN, two looks, two inserts a message, counts, COMMIT
    with tracing(backend) as more:
        leases = backend.fetch_many(QUEUE, limit=4)
    assert len(more) == 7  # and no look before: the fetch before this one had brought all it asked for
    statements += more
    with tracing(backend) as more:
        backend.renew_many(leases, 30.0)
    assert len(more) == 7
    statements += more
    with tracing(backend) as more:
        verbs = (Ack(), Nack(), Release(), Abandon("hopeless"))
        assert all(backend.settle_many(list(zip(leases, verbs, strict=True))))
    assert len(more) == 11
    statements += more
    others = [sql for sql in statements if not sql.startswith(KNOWN_IDS)]
    assert not [sql for sql in others for word in OF_CLAIMS if word in sql]
    with tracing(backend) as more:
        backend.reap(QUEUE)
    assert len(more) == 4
    statements += more
    assert not [sql for sql in statements for table in KEY_TABLES if f" {table} " in sql]


def test_after_a_wait_that_saw_a_job_the_fetch_looks_no_second_time(backend: SqliteBackend) -> None:
    assert backend.fetch_many(QUEUE, limit=4) == []
    backend.enqueue(a_job())
    with tracing(backend) as statements:
        assert backend.wait_any(["other", QUEUE], 5.0) == QUEUE
    assert len(statements) == 3  # the counter of changes, and a look at each queue
    with tracing(backend) as statements:
        assert len(backend.fetch_many(QUEUE, limit=4)) == 1
    assert len(statements) == 7
    with tracing(backend) as statements:
        assert backend.fetch_many(QUEUE, limit=4) == []
    assert len(statements) == 1  # a look: it takes no lock from others


def test_a_batch_is_one_write_transaction(backend: SqliteBackend) -> None:
    backend.enqueue_many(numbered(50))
    leases = backend.fetch_many(QUEUE, limit=50)
    with tracing(backend) as statements:
        answers = backend.keys.begin_many(
            [(lease, Guards(lease.id, 9.0, (Hold("queue", 40),), (Rate("queue", 30),))) for lease in leases]
        )
    assert [bool(answer) for answer in answers] == [True] * 30 + [False] * 20
    assert [sql for sql in statements if sql.startswith("BEGIN")] == ["BEGIN IMMEDIATE"]
    assert statements[-1] == "COMMIT"


def test_what_names_share_is_read_once(backend: SqliteBackend) -> None:
    backend.enqueue_many(numbered(50))
    asked = [
        (lease, Guards(holds=(Hold("queue", 99),), rates=(Rate("queue", 99),)))
        for lease in backend.fetch_many(QUEUE, limit=50)
    ]
    with tracing(backend) as statements:
        assert all(backend.keys.begin_many(asked))
    assert len(statements) == 2 + 3 + 2 * 50  # BEGIN and COMMIT; leases, places, rate; a place and a start each


def test_guarded_jobs_settle_in_a_few_statements_more(backend: SqliteBackend) -> None:
    lease = new_lease(backend)
    guards = Guards(key="order-17")
    backend.keys.begin_many([(lease, guards)])
    with tracing(backend) as statements:
        backend.ack(lease.guarded(guards))
    assert len(statements) == 8 + 2  # the hold is left, the key is done


def cycle(backend: SqliteBackend, limit: int) -> dict[str, int]:
    """How many statements each step of a claim takes."""
    counts = {}
    post(backend, *(b"%d" % number for number in range(limit)), life=600.0)
    with tracing(backend) as statements:
        held = claim(backend, limit)
    counts["claim"] = len(statements)
    with tracing(backend) as statements:
        backend.claims.renew(QUEUE, held.id, ttl=60.0)
    counts["renew"] = len(statements)
    with tracing(backend) as statements:
        backend.claims.delete_many(QUEUE, ids(held.messages)[1:], held.id)
    counts["delete"] = len(statements)
    with tracing(backend) as statements:
        assert backend.claims.release(QUEUE, held.id) == 1
    counts["release"] = len(statements)
    with tracing(backend) as statements:
        assert len(backend.claims.pop(QUEUE, limit)) == 1
    counts["pop"] = len(statements)
    return counts


def test_twenty_messages_take_as_many_statements_as_two(backend: SqliteBackend) -> None:
    two, twenty = cycle(backend, 2), cycle(backend, 20)
    assert two == twenty
    assert two == {"claim": 14, "renew": 5, "delete": 8, "release": 6, "pop": 14}


NOTHING: dict[str, Callable[[QueueBackend], object]] = {
    "claim": lambda backend: backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0),
    "pop": lambda backend: backend.claims.pop(QUEUE, 1),
    "list": lambda backend: backend.claims.list_free(QUEUE),
    "claims": lambda backend: backend.claims.list_claims(QUEUE),
    "stats": lambda backend: backend.claims.stats(QUEUE),
    "reap": lambda backend: backend.reap(QUEUE),
}


@pytest.mark.parametrize("name", NOTHING)
def test_where_there_is_nothing_to_do_nobody_is_kept_from_writing(backend: SqliteBackend, name: str) -> None:
    """Whoever asks again and again, while others write."""
    post(backend, delay=9.0)
    backend.enqueue(a_job())
    backend.fetch_many(QUEUE, limit=1)
    post(backend)
    claim(backend)
    with tracing(backend) as statements:
        NOTHING[name](backend)
    assert [sql for sql in statements if sql.startswith("BEGIN")] == ["BEGIN"]


def test_what_has_ended_is_cleared_once(backend: SqliteBackend, clock: ManualClock) -> None:
    post(backend, b"0", life=60.0)
    post(backend, b"1")
    claim(backend, 2, ttl=60.0, grace=60.0)
    clock.advance(120.0)
    for begins in (["BEGIN", "BEGIN IMMEDIATE"], ["BEGIN"]):
        with tracing(backend) as statements:
            stats = backend.claims.stats(QUEUE)
        assert [sql for sql in statements if sql.startswith("BEGIN")] == begins
        assert (stats.free, stats.expired) == (1, 1)


def test_a_write_looks_at_each_of_the_files_once(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    look = os.stat
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path, **options: looked.append(path) or look(path, **options))
        backend.enqueue(a_job())
    assert len(looked) == len(set(looked)) == 3  # the database, its log and what its users share


def test_a_page_over_all_queues_reads_only_the_bodies_that_it_shows(backend: SqliteBackend) -> None:
    for number in range(20):
        backend.enqueue_many([a_job("x" * 100_000, queue=f"queue-{number}") for _ in range(5)])
    tracemalloc.start()
    try:
        assert len(backend.list_messages(MessageFilter(states=(State.WAITING,)), limit=5)) == 5
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2_000_000
