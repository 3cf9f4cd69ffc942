"""A file that an older jobpool wrote goes on, with all that is in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_versions import NOW, write_version
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.values import MessageFilter, NewBatch, State, Verb
from jobpool.clock import ManualClock
from jobpool.message.guards import Guards, Hold
from jobpool.message.settlement import Settled
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.schema import MIGRATIONS, VERSION

Open = Callable[..., SqliteBackend]


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
    assert {message.id: message.state.value for message in backend.list_messages()} == {
        name: name for name in ("waiting", "delayed", "leased", "dead")
    }
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
