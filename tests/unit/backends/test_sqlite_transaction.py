"""Enqueue, and ack, within a transaction of the caller's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.jobs import QUEUE, a_job

from jobpool import Jobs
from jobpool.clock import ManualClock
from jobpool.errors import ConfigurationError, LeaseLost, Unsupported
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.in_transaction import ack


@pytest.fixture
def backend(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteBackend]:
    with closing(SqliteBackend(str(tmp_path / "jobpool.db"), clock=clock)) as backend:
        yield backend


@pytest.fixture
def connection(backend: SqliteBackend, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    backend.ping()
    with closing(sqlite3.connect(tmp_path / "jobpool.db", timeout=0.2)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("CREATE TABLE mine (name TEXT)")
        yield connection


def test_a_job_is_there_when_the_transaction_commits(backend: SqliteBackend, connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("INSERT INTO mine VALUES ('order')")
        [ident] = backend.enqueue_in(connection, [a_job("later")])
        assert backend.stats(QUEUE).waiting == 0
    lease = backend.fetch(QUEUE)
    assert lease is not None
    assert lease.id == ident
    assert backend.stats(QUEUE).leased == 1


def test_a_job_never_was_when_the_transaction_rolls_back(
    backend: SqliteBackend, connection: sqlite3.Connection
) -> None:
    Jobs(backend=backend).enqueue(a_job(), connection=connection)
    connection.rollback()
    assert backend.stats(QUEUE).pending == 0
    assert backend.fetch(QUEUE) is None


def test_a_known_id_stays_as_it_is(backend: SqliteBackend, connection: sqlite3.Connection) -> None:
    backend.enqueue(a_job("first", identifier="order-1"))
    with connection:
        assert backend.enqueue_in(connection, [a_job("second", identifier="order-1")]) == ["order-1"]
    assert [message.id for message in backend.list_messages()] == ["order-1"]


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


def test_autocommit_without_a_transaction_is_refused(backend: SqliteBackend, tmp_path: Path) -> None:
    path = tmp_path / "jobpool.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(ConfigurationError, match="BEGIN IMMEDIATE"):
            backend.enqueue_in(connection, [a_job()])
        connection.execute("BEGIN IMMEDIATE")
        backend.enqueue_in(connection, [a_job()])
        connection.execute("COMMIT")
    assert backend.stats(QUEUE).waiting == 1


class Newer(sqlite3.Connection):
    """As of `sqlite3.connect(…, autocommit=True)`, from Python 3.12; its level is not None."""

    autocommit = True


def test_the_newer_autocommit_is_refused_too(
    backend: SqliteBackend, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    del connection
    with (
        closing(sqlite3.connect(tmp_path / "jobpool.db", factory=Newer)) as newer,
        pytest.raises(ConfigurationError, match="BEGIN IMMEDIATE"),
    ):
        backend.enqueue_in(newer, [a_job()])


def test_a_backend_that_cannot_says_so() -> None:
    with pytest.raises(Unsupported, match="memory://"):
        MemoryBackend().enqueue_in(object(), [a_job()])


# --- ack ------------------------------------------------------------------------------------------------


def a_lease(backend: SqliteBackend, ttl: float = 30.0) -> JobLease:
    backend.enqueue(a_job())
    lease = backend.fetch(QUEUE, ttl=ttl)
    assert lease is not None
    return lease


def test_an_ack_comes_true_with_the_commit_and_is_then_known(
    backend: SqliteBackend, connection: sqlite3.Connection, clock: ManualClock
) -> None:
    lease = a_lease(backend)
    with connection:
        still_open = ack(connection, backend.ticket(lease), [backend.pack(a_job("next"))], clock=clock)
        assert still_open()
    assert not still_open()
    assert backend.ack(lease) is Settled.ALREADY
    assert backend.settle_many([(lease, Ack((a_job("not again"),)))], f"ack:{lease.owner_token}") == [Settled.ALREADY]
    assert backend.stats(QUEUE).waiting == 1


def test_an_ack_that_is_rolled_back_never_was(
    backend: SqliteBackend, connection: sqlite3.Connection, clock: ManualClock
) -> None:
    lease = a_lease(backend)
    ack(connection, backend.ticket(lease), [backend.pack(a_job("next"))], clock=clock)
    connection.rollback()
    assert backend.stats(QUEUE).leased == 1
    assert backend.ack(lease) is Settled.OK
    assert backend.stats(QUEUE).pending == 0


def test_an_ack_of_a_lease_that_has_ended_is_refused(
    backend: SqliteBackend, connection: sqlite3.Connection, clock: ManualClock
) -> None:
    lease = a_lease(backend, ttl=5.0)
    clock.advance(5.0)
    with pytest.raises(LeaseLost, match=lease.id), connection:
        ack(connection, backend.ticket(lease), [backend.pack(a_job("next"))], clock=clock)
    assert backend.stats(QUEUE).leased == 1
    assert backend.stats(QUEUE).waiting == 0
    assert not connection.in_transaction
