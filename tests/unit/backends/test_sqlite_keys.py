"""The key store in a file: a handler's own ack, and that nothing stays for ever."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_explained import rows
from support.jobs import QUEUE, a_job, numbered
from support.looks import begin

from jobpool.clock import ManualClock
from jobpool.errors import ConfigurationError
from jobpool.message.guards import Guards, Hold, Rate
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.in_transaction import ack
from jobpool_backends.sqlite.keys import HOLD_SWEEP_PAGE

Open = Callable[..., SqliteBackend]

KEY = Guards(key="order-17", keep=50.0, holds=(Hold("job:nightly"),))


@pytest.fixture
def backend(open_sqlite: Open, clock: ManualClock) -> SqliteBackend:
    return open_sqlite(clock=clock)


def two_leases(backend: SqliteBackend, ttl: float = 30.0) -> tuple[JobLease, JobLease]:
    backend.enqueue_many(numbered(2))
    [first] = backend.fetch_many(QUEUE, limit=1, ttl=ttl)
    [second] = backend.fetch_many(QUEUE, limit=1, ttl=1000.0)
    return first, second


# --- a handler's own ack ------------------------------------------------------------------------------------


def test_the_handlers_own_ack_removes_what_its_lease_held(backend: SqliteBackend, path: Path) -> None:
    first, _ = two_leases(backend)
    assert begin(backend, first, KEY)
    with closing(sqlite3.connect(path)) as connection, connection:
        ack(connection, backend.ticket(first.guarded(KEY)), clock=backend.clock)
    assert rows(backend, "holds") == 0


# --- nothing stays for ever ---------------------------------------------------------------------------------


def test_what_has_ended_takes_no_room(backend: SqliteBackend, clock: ManualClock) -> None:
    backend.enqueue_many([a_job(n, unique=True, idempotency_key=f"key-{n}") for n in range(30)])
    asked = [
        (lease, Guards(f"key-{n}", 50.0, (Hold(f"job:{n}"),), (Rate(f"concurrency:{n}", 9, 10.0),)))
        for n, lease in enumerate(backend.fetch_many(QUEUE, limit=30))
    ]
    assert all(backend.keys.begin_many(asked))
    assert [rows(backend, table) for table in ("holds", "starts")] == [60, 30]
    backend.settle_many([(lease.guarded(guards), Ack()) for lease, guards in asked])
    backend.keys.put_records("pools", {f"pool-{n}": b"x" for n in range(30)}, 50.0)
    assert [rows(backend, table) for table in ("holds", "done", "spent", "records")] == [0, 30, 30, 30]
    clock.advance(70.0)
    backend.enqueue(a_job(unique=True, idempotency_key="another"))
    backend.keys.forget(QUEUE, "another")
    assert [rows(backend, table) for table in ("starts", "done", "spent", "records")] == [0, 0, 0, 0]


def test_a_reap_takes_the_holds_of_those_who_died(backend: SqliteBackend, clock: ManualClock) -> None:
    first, second = two_leases(backend, ttl=5.0)
    for lease in (first, second):
        assert begin(backend, lease, Guards(key=lease.id))
    clock.advance(5.0)
    backend.reap(QUEUE)
    assert rows(backend, "holds") == 1


def test_holds_of_leases_that_were_settled_without_a_word_of_them_are_swept(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    count = 2 * HOLD_SWEEP_PAGE + 50
    backend.enqueue_many(numbered(count + 1))
    [alive, *leases] = backend.fetch_many(QUEUE, limit=count + 1, ttl=1000.0)
    assert all(backend.keys.begin_many([(lease, Guards(key=lease.id)) for lease in (alive, *leases)]))
    assert backend.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * count
    for _ in range(3):  # a page a second
        clock.advance(1.0)
        backend.keys.forget(QUEUE, "any")
    assert rows(backend, "holds") == 1
    assert backend.keys.holders(QUEUE, f"key:{alive.id}") == [alive.id]
    for _ in range(2):
        clock.advance(1.0)
        backend.keys.forget(QUEUE, "any")
    assert rows(backend, "holds") == 1


@pytest.fixture
def connection(backend: SqliteBackend, path: Path) -> Iterator[sqlite3.Connection]:
    backend.ping()
    with closing(sqlite3.connect(path, timeout=0.2)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("CREATE TABLE mine (name TEXT)")
        yield connection


def test_the_callers_connection_keeps_its_ways(backend: SqliteBackend, connection: sqlite3.Connection) -> None:
    with connection:
        backend.enqueue_in(connection, [a_job()])
    assert connection.row_factory is sqlite3.Row


def test_another_file_or_another_thing_is_refused(backend: SqliteBackend, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, pytest.raises(ConfigurationError, match="other"):
        backend.enqueue_in(other, [a_job()])
    with closing(sqlite3.connect(":memory:")) as memory, pytest.raises(ConfigurationError, match="leads to memory"):
        backend.enqueue_in(memory, [a_job()])
    with pytest.raises(ConfigurationError, match="builtins"):
        backend.enqueue_in("connection", [a_job()])


class Newer(sqlite3.Connection):
    """As of `sqlite3.connect(…, autocommit=True)`, from Python 3.12; its level is not None."""

    autocommit = True


def test_the_newer_autocommit_is_refused_too(
    backend: SqliteBackend, connection: sqlite3.Connection, path: Path
) -> None:
    del connection
    with (
        closing(sqlite3.connect(path, factory=Newer)) as newer,
        pytest.raises(ConfigurationError, match="BEGIN IMMEDIATE"),
    ):
        backend.enqueue_in(newer, [a_job()])
