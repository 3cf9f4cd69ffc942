"""Fixtures for the tests of single backends: what the contract suite cannot know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis_rig
from beanstalk_clients import Clients
from postgres_explained import Explained
from postgres_rig import PATIENCE, Rig
from support.servers import shared_redis

from jobpool.clock import ManualClock
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.sqlite import SqliteBackend

Open = Callable[..., SqliteBackend]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def open_sqlite(path: Path) -> Iterator[Open]:
    """Opens backends on one file, and closes them."""
    opened: list[SqliteBackend] = []

    def open_one(**options: Any) -> SqliteBackend:
        opened.append(SqliteBackend(str(path), **options))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A `Rig`, of the kind that the test's module imports."""
    with request.module.Rig() as rig:
        yield rig


@pytest.fixture
def turned() -> Iterator[redis_rig.Rig]:
    """On a Redis whose clock stands still."""
    server = shared_redis(turned=True)
    server.flush()
    with redis_rig.Rig(server) as rig:
        yield rig


@pytest.fixture
def backend(rig: Any) -> PostgresBackend:
    """Of Postgres."""
    backend: PostgresBackend = rig.open(timeout=PATIENCE)
    backend.prepare()
    return backend


@pytest.fixture
def connection(rig: Any, backend: PostgresBackend) -> psycopg.Connection[Any]:
    """In a transaction of somebody else's, on Postgres."""
    del backend
    connection: psycopg.Connection[Any] = rig.connect()
    return connection


@pytest.fixture(scope="module")
def few(request: pytest.FixtureRequest) -> Iterator[Explained]:
    """A Postgres schema with `FEW` rows, as the test's module fills it."""
    with Rig(new=True) as rig:
        yield request.module.filled(rig, request.module.FEW)


@pytest.fixture(scope="module")
def many(request: pytest.FixtureRequest) -> Iterator[tuple[Rig, Explained]]:
    """The same with `MANY`."""
    with Rig(new=True) as rig:
        yield rig, request.module.filled(rig, request.module.MANY)


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Of a beanstalkd."""
    with Clients() as clients:
        yield clients
