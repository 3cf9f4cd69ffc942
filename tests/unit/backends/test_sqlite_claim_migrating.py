"""A file of the version before claims goes on, with all that is in it, and can then do what a new one can."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_versions import write_version
from support.claims import claim, found, ids, post
from support.jobs import QUEUE, a_job

from jobpool.broker.values import MessageFilter, QueueStats, State, Verb
from jobpool.clock import ManualClock
from jobpool.message.guards import Guards
from jobpool.message.settlement import Settled
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.schema import VERSION

Open = Callable[..., SqliteBackend]

NAMES = ("waiting", "delayed", "leased", "dead")


@pytest.fixture
def old(path: Path) -> Path:
    write_version(path, 2)
    return path


def test_every_message_is_where_it_was(old: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(clock=ManualClock(), boot=7)
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert {message.id: message.state.value for message in backend.list_messages()} == dict(
        zip(NAMES, NAMES, strict=True)
    )
    assert all((one.claim, one.claims, one.ends_at) == (None, 0, None) for one in backend.list_messages())
    assert backend.stats(QUEUE) == QueueStats(waiting=1, delayed=1, leased=1, dead=1, oldest=0.0)
    stats = backend.claims.stats(QUEUE)
    assert (stats.claimed, stats.free, stats.delayed, stats.expired) == (1, 1, 1, 0)
    assert backend.evicted(QUEUE) == 17
    assert not backend.keys.first_run(QUEUE, "order-17")


def test_what_was_there_can_be_claimed_and_what_was_leased_cannot(old: Path, open_sqlite: Open) -> None:
    del old
    clock = ManualClock()
    backend = open_sqlite(clock=clock, boot=7)
    [posted] = post(backend, life=900.0)
    first = claim(backend, 20)
    assert ids(first.messages) == ["waiting", posted]
    clock.advance(30.0)
    assert [reaped.id for reaped in backend.reap(QUEUE)] == ["leased"]
    assert backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.RETRY) == 1
    assert ids(claim(backend, 20).messages) == ["delayed", "leased", "dead"]
    backend.claims.delete_many(QUEUE, ["waiting"], first.id)
    assert backend.enqueue(a_job(unique=True, idempotency_key="only")) != "waiting"
    assert found(backend, posted).claim == first.id


def test_a_pool_goes_on_as_before(old: Path, open_sqlite: Open) -> None:
    del old
    clock = ManualClock()
    backend = open_sqlite(clock=clock, boot=7)
    post(backend)
    clock.advance(5.0)
    assert backend.enqueue(a_job(unique=True, idempotency_key="only")) == "waiting"
    leases = backend.fetch_many(QUEUE, limit=9)
    assert ids(leases) == ["waiting", "delayed"]
    asked = [(lease, Guards(key=lease.id)) for lease in leases]
    assert all(backend.keys.begin_many(asked))
    assert [backend.ack(lease.guarded(guards)) for lease, guards in asked] == [Settled.OK] * 2
