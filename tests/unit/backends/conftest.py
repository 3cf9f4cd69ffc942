"""Fixtures for the tests of single backends: what the contract suite cannot know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis_rig
from beanstalk_clients import Clients
from postgres_explained import Explained, explained
from postgres_rig import PATIENCE, Rig
from support.servers import RedisServer, shared_redis

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
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def stack(threads: ThreadPoolExecutor) -> Iterator[ExitStack]:
    """Closes what a test has opened. Threads that wait for that end behind it."""
    del threads
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def rig(request: pytest.FixtureRequest, stack: ExitStack) -> Any:
    """A `Rig`, of the kind that the test's module imports."""
    return stack.enter_context(request.module.Rig())


@pytest.fixture
def turned(stack: ExitStack) -> redis_rig.Rig:
    """On a Redis whose clock stands still."""
    server = shared_redis(turned=True)
    server.flush()
    return stack.enter_context(redis_rig.Rig(server))


@pytest.fixture
def start(stack: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> redis_rig.Start:
    """Starts servers of Redis, and ends them."""

    def start_one(**config: str) -> RedisServer:
        directives = {name.replace("_", "-"): value for name, value in config.items()}
        return stack.enter_context(RedisServer(tmp_path_factory.mktemp("redis"), config=directives))

    return start_one


@pytest.fixture
def full(stack: ExitStack, tmp_path: Path) -> redis_rig.Rig:
    """On a Redis of its own, whose memory may be full and whose clock stands still."""
    server = stack.enter_context(RedisServer(tmp_path / "full", turned=True))
    return stack.enter_context(redis_rig.Rig(server))


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Any:
    """Of the rig that the test asks for, prepared."""
    rig = request.getfixturevalue("turned" if "turned" in request.fixturenames else "rig")
    backend = rig.open(timeout=PATIENCE)
    backend.prepare()
    return backend


@pytest.fixture
def connection(rig: Any, backend: PostgresBackend) -> psycopg.Connection[Any]:
    """In a transaction of somebody else's, on Postgres."""
    del backend
    connection: psycopg.Connection[Any] = rig.connect()
    return connection


@pytest.fixture
def role(rig: Any) -> Iterator[str]:
    """A user of Postgres who may do nothing yet; SQL has to quote the name."""
    name = f"user-of-{rig.schema}"
    rig.ask(f'CREATE ROLE "{name}" LOGIN')
    yield name
    rig.ask(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


@pytest.fixture(scope="module")
def empty() -> Iterator[Explained]:
    """A Postgres schema, new for the test's module."""
    with Rig(new=True) as rig:
        rig.open().prepare()
        yield explained(rig)


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
