"""A file of an older version becomes what a new one is; `test_stored_queues.py` sees that what is in it goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from jobpool.broker.values import NewBatch
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.schema import MIGRATIONS, VERSION


def write_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")


def read_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return number


def test_a_build_before_the_release_has_left_a_column_out(
    path: Path, open_sqlite: Callable[..., SqliteBackend]
) -> None:
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
        write_version(path, number)
        SqliteBackend(str(path)).close()
        assert read_version(path) == VERSION
        with closing(sqlite3.connect(path)) as connection:
            schemas.append(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall())
    assert all(schema == schemas[0] for schema in schemas)


def test_many_who_open_it_at_once_migrate_it_once(path: Path) -> None:
    write_version(path, 1)

    def open_one(_: int) -> int:
        with closing(SqliteBackend(str(path), timeout=30.0)) as backend:
            return backend.stats("reports").dead

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(open_one, range(8))) == [0] * 8
    assert read_version(path) == VERSION
