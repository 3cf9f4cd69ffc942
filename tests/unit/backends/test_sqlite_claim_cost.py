"""What claims cost in statements and transactions, and that a plain job pays for none of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlite_explained import tracing
from support.claims import claim, ids, post
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.clock import ManualClock
from jobpool.message.settlement import Ack
from jobpool_backends.sqlite import SqliteBackend

Open = Callable[..., SqliteBackend]

OF_CLAIMS = ("claims", "posts", "ends_at", "state = 4", "state = 5")


@pytest.fixture
def backend(open_sqlite: Open, clock: ManualClock) -> SqliteBackend:
    """On a clock that stands still, and warm: what is swept once a second has been."""
    backend = open_sqlite(clock=clock)
    post(backend)
    backend.claims.pop(QUEUE, 1)
    return backend


def test_plain_jobs_execute_no_statement_for_claims(backend: SqliteBackend) -> None:
    """Posted messages beside them change nothing. The look at their ids tells what has ended, and always was there."""
    post(backend, b"claimed")
    claim(backend, 1)
    post(backend, b"free", life=60.0)
    with tracing(backend) as statements:
        backend.enqueue_many(numbered(4))
        leases = backend.fetch_many(QUEUE, limit=4)
        backend.renew_many(leases, 30.0)
        backend.settle_many([(lease, Ack()) for lease in leases])
    assert len(statements) == 13 + 8 + 7 + 8
    assert [sql for sql in statements for word in OF_CLAIMS if word in sql] == [
        sql for sql in statements if sql.startswith("SELECT seq, queue, state, id, given, ends_at FROM messages")
    ]
    with tracing(backend) as statements:
        assert backend.reap(QUEUE) == []
    assert len(statements) == 4


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
