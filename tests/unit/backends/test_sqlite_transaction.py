"""What the contract suite cannot see of an enqueue within a transaction of the caller's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.jobs import QUEUE, a_job

from jobpool.clock import ManualClock
from jobpool.errors import ConfigurationError, Unsupported
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend


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
