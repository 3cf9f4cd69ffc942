"""A file that an older jobpool wrote goes on, with all that is in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from support.claims import claim, found, ids, post
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.values import MessageFilter, NewBatch, QueueStats, State, Verb
from jobpool.clock import ManualClock
from jobpool.message.guards import Guards, Hold
from jobpool.message.settlement import Settled
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.schema import MIGRATIONS, VERSION

NOW = 1_800_000_000_000_000

Open = Callable[..., SqliteBackend]

STATES = {name: name for name in ("waiting", "delayed", "leased", "dead")}


def write_version(path: Path, version: int) -> None:
    """One message in each state; in version 2 also a unique key, an idempotency key, and 17 evicted."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                connection.execute(statement)
        connection.executemany(
            "INSERT INTO messages (id, given, queue, handler, priority, state, enqueued_at, available_at, holder, boot,"
            " deadline, deadline_wall, ttl, died_at, reason)"
            " VALUES (?, 0, ?, 'report', 5, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                ("waiting", QUEUE, 0, NOW, NOW, None, None, None, None, None, None, None),
                ("delayed", QUEUE, 1, NOW, NOW + 5_000_000, None, None, None, None, None, None, None),
                ("leased", QUEUE, 2, NOW, NOW, "h" * 16, 7, 1_030_000_000, NOW + 30_000_000, 30_000_000, None, None),
                ("dead", QUEUE, 3, NOW, NOW, None, None, None, None, None, NOW, "timeout"),
            ],
        )
        connection.execute("INSERT INTO bodies SELECT seq, x'7b7d' FROM messages")
        connection.execute("INSERT INTO queues (name, waiting, delayed, leased, dead) VALUES (?, 1, 1, 1, 1)", (QUEUE,))
        if version == 2:
            connection.execute("UPDATE messages SET unique_key = 'only' WHERE id = 'waiting'")
            connection.execute("UPDATE queues SET evicted = 17")
            connection.execute("INSERT INTO done VALUES (?, 'order-17', ?)", (QUEUE, NOW + 3_600_000_000))
        connection.execute(f"PRAGMA user_version = {version}")


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return number


@pytest.fixture
def old(path: Path) -> Path:
    write_version(path, 1)
    return path


def test_every_message_is_where_it_was(old: Path, open_sqlite: Open) -> None:
    clock = ManualClock()
    backend = open_sqlite(clock=clock, boot=7)
    assert version(old) == VERSION
    assert {message.id: message.state.value for message in backend.list_messages()} == STATES
    assert backend.evicted(QUEUE) == 0
    clock.advance(30.0)
    assert [reaped.id for reaped in backend.reap(QUEUE)] == ["leased"]
    assert backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.RESUME) == 1
    leases = backend.fetch_many(QUEUE, limit=9)
    assert [lease.id for lease in leases] == ["waiting", "delayed", "leased", "dead"]
    assert [backend.ack(lease) for lease in leases] == [Settled.OK] * 4


def test_it_can_then_do_all_that_a_new_one_can(old: Path, open_sqlite: Open) -> None:
    del old
    backend = open_sqlite(clock=ManualClock(), boot=7)
    job = a_job(unique=True, idempotency_key="order-17")
    assert backend.enqueue(job) == backend.enqueue(job)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    guards = Guards(key="order-17", holds=(Hold("queue", 1),))
    assert backend.keys.begin_many([(lease, guards)])[0]
    assert backend.ack(lease.guarded(guards)) is Settled.OK
    assert not backend.keys.first_run(QUEUE, "order-17")


def test_the_old_dead_letters_count_for_the_caps(old: Path) -> None:
    with closing(SqliteBackend.from_url(f"sqlite:///{old}?dead_max=1", clock=ManualClock(NOW / 1e6 + 9))) as backend:
        backend.enqueue_many(numbered(1))
        [lease] = backend.fetch_many(QUEUE, limit=1)
        backend.abandon(lease, "hopeless")
        assert [message.id for message in backend.list_messages(MessageFilter(states=(State.DEAD,)))] == [lease.id]
        assert backend.evicted(QUEUE) == 1


def test_a_build_before_the_release_has_left_a_column_out(path: Path, open_sqlite: Open) -> None:
    open_sqlite().close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE batches DROP COLUMN stopped")
    backend = open_sqlite()
    backend.batches.open(NewBatch("one"))
    assert backend.find_batch("one") is not None


def test_a_file_of_every_version_becomes_what_a_new_one_is(tmp_path: Path) -> None:
    schemas = []
    for number in range(VERSION + 1):
        path = tmp_path / f"{number}.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            for statements in MIGRATIONS[:number]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        SqliteBackend(str(path)).close()
        with closing(sqlite3.connect(path)) as connection:
            schemas.append(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall())
    assert all(schema == schemas[0] for schema in schemas)


def test_many_who_open_it_at_once_migrate_it_once(old: Path) -> None:
    def open_one(_: int) -> int:
        with closing(SqliteBackend(str(old), timeout=30.0)) as backend:
            return backend.stats(QUEUE).dead

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(open_one, range(8))) == [1] * 8
    assert version(old) == VERSION


@pytest.fixture
def second(path: Path) -> Path:
    """Of the version before claims."""
    write_version(path, 2)
    return path


def test_every_message_of_version_2_is_where_it_was(second: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(clock=ManualClock(), boot=7)
    assert version(second) == VERSION
    assert {message.id: message.state.value for message in backend.list_messages()} == STATES
    assert all((one.claim, one.claims, one.ends_at) == (None, 0, None) for one in backend.list_messages())
    assert backend.stats(QUEUE) == QueueStats(waiting=1, delayed=1, leased=1, dead=1, oldest=0.0)
    stats = backend.claims.stats(QUEUE)
    assert (stats.claimed, stats.free, stats.delayed, stats.expired) == (1, 1, 1, 0)
    assert backend.evicted(QUEUE) == 17
    assert not backend.keys.first_run(QUEUE, "order-17")


def test_what_was_there_can_be_claimed_and_what_was_leased_cannot(second: Path, open_sqlite: Open) -> None:
    del second
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


def test_a_pool_goes_on_as_before(second: Path, open_sqlite: Open) -> None:
    del second
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
