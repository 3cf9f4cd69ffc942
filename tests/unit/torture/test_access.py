"""A user of the run's own is locked out on a real server, and comes back; nobody else is touched, and none is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from redis import Redis, RedisError
from support.servers import fresh_name, shared_postgres, shared_redis
from support.waiting import wait_until

from jobpool.broker.opening import open_backend
from jobpool_torture.broker_faults import Access, PostgresUser, RedisUser, make_access
from jobpool_torture.schedule import Fault

Ask = Callable[[], Any]


class OnRedis:
    ways = tuple(RedisUser.denials)
    errors = RedisError

    def __init__(self) -> None:
        self.server = shared_redis()
        self.url = f"redis://{self.server.host}:{self.server.port}/0?prefix={fresh_name('access')}"
        self.may_not = f"redis://weak:weak@{self.server.host}:{self.server.port}/0"

    def make_weak(self) -> None:
        self.order("ACL", "SETUSER", "weak", "on", ">weak", "~*", "+@all", "-@admin")

    def order(self, *words: str) -> Any:
        with Redis(host=self.server.host, port=self.server.port) as client:
            return client.execute_command(*words)

    def users(self) -> set[str]:
        return {user.decode() for user in self.order("ACL", "USERS")}

    def forget(self, name: str) -> None:
        self.order("ACL", "DELUSER", name)

    @contextmanager
    def asking(self, url: str) -> Iterator[Ask]:
        """One connection, without the library's own retries on another."""
        with Redis.from_url(url.partition("?")[0], retry=None, single_connection_client=True) as client:
            client.ping()
            yield lambda: client.get("jobpool")


class OnPostgres:
    ways = tuple(PostgresUser.denials)
    errors = psycopg.Error

    def __init__(self) -> None:
        self.server = shared_postgres()
        place = f"{self.server.host}:{self.server.port}/postgres"
        self.url = f"postgresql://postgres@{place}?schema={fresh_name('access')}"
        self.may_not = f"postgresql://weak:weak@{place}"

    def make_weak(self) -> None:
        self.order("CREATE ROLE weak LOGIN PASSWORD 'weak'")

    def order(self, sql: str) -> list[tuple[Any, ...]]:
        where = f"postgresql://postgres@{self.server.host}:{self.server.port}/postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def users(self) -> set[str]:
        return {name for (name,) in self.order("SELECT rolname FROM pg_roles")}

    def forget(self, name: str) -> None:
        self.order(f'DROP ROLE "{name}"')

    @contextmanager
    def asking(self, url: str) -> Iterator[Ask]:
        """Of something that only the URL's own role may see."""
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            yield lambda: connection.execute("SELECT count(*) FROM pg_authid").fetchone()


Server = OnRedis | OnPostgres


@pytest.fixture(params=[OnRedis, OnPostgres], ids=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Server:
    made: Server = request.param()
    return made


@pytest.fixture
def access(server: Server) -> Iterator[Access]:
    made = make_access(server.url)
    assert isinstance(made, Access), made
    yield made
    assert made.remove() == ""
    assert made.remove() == ""
    assert made.name not in server.users()


def locked_out(server: Server, ask: Ask) -> bool:
    try:
        ask()
    except server.errors:
        return True
    return False


def test_a_pool_can_work_by_it(server: Server, access: Access) -> None:
    backend = open_backend(server.url)
    backend.prepare()
    backend.close()
    backend = open_backend(access.url)
    backend.prepare()
    assert backend.stats("default").waiting == 0
    backend.close()


def test_each_way_locks_it_out_and_its_end_lets_it_in(server: Server, access: Access) -> None:
    for pick, way in enumerate(server.ways):
        with server.asking(access.url) as ask, server.asking(server.url) as ask_as_others:
            ask()
            assert way in access.begin(Fault(7, 0.0, "access.deny", pick=pick))
            wait_until(partial(locked_out, server, ask), what=f"it is locked out: {way}")
            ask_as_others()
        assert not access.is_whole
        access.end(7)
        assert access.is_whole
        with server.asking(access.url) as ask:
            ask()
        assert access.was_denied_since(0.0)


def test_the_first_end_of_two_lets_nobody_in(server: Server, access: Access) -> None:
    access.begin(Fault(1, 0.0, "access.deny", pick=0))
    access.begin(Fault(2, 0.0, "access.deny", pick=0))
    access.end(1)
    with pytest.raises(server.errors), server.asking(access.url):
        raise AssertionError
    access.end(2)
    with server.asking(access.url) as ask:
        ask()


def test_a_broker_that_was_started_again_without_it_gets_it_back(server: Server, access: Access) -> None:
    server.forget(access.name)
    access.forget()
    assert not access.is_whole
    access.mend()
    assert access.is_whole
    with server.asking(access.url) as ask:
        ask()


def test_who_may_make_no_other_has_none_and_leaves_none(server: Server) -> None:
    server.make_weak()
    try:
        before = server.users()
        said = make_access(server.may_not)
        assert isinstance(said, str)
        assert said.startswith("the URL's user can make no other: ")
        assert server.users() == before
    finally:
        server.forget("weak")


def test_where_it_cannot_be_had_it_says_why() -> None:
    for url, why in [
        ("sqlite:///q.db", "sqlite:// has no users"),
        ("beanstalk://host", "beanstalk:// has no users"),
        ("redis+cluster://host", "one of several servers"),
        ("redis+unix:///socket", "by TCP"),
        ("rediss://host", "without TLS"),
        ("redis://host?username=a&password=b", "option username names a user"),
        ("postgresql:///jobs", "names no host"),
        ("redis://127.0.0.1:1", "the URL's user can make no other: "),
        ("postgresql://127.0.0.1:1/jobs", "the URL's user can make no other: "),
    ]:
        said = make_access(url)
        assert isinstance(said, str), url
        assert why in said, url
