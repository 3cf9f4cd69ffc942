"""A store that an older jobpool wrote is opened with all that is in it, and goes on where that one stopped.

`stored_jobs.py` tells what is in it, and how it was made.
"""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from stored_jobs import (
    BOOT,
    CALL,
    CLAIM,
    FETCH,
    GUARDS,
    POSTS,
    SIGNER,
    START,
    fill,
    functions,
    leases,
    repeatable,
    snapshot,
)
from support.harnesses.postgres import TURNED
from support.harnesses.redis import RedisHarness
from support.jobs import QUEUE, a_job
from support.servers import BeanstalkServer, fresh_name, shared_postgres

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.clock import ManualClock
from jobpool.message.guards import Begin
from jobpool.message.settlement import Ack, Settled
from jobpool.policy.inspection import LeaseInspector
from jobpool_backends.beanstalk import BeanstalkBackend
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.redis import RedisBackend
from jobpool_backends.sqlite import SqliteBackend

STORED = Path(__file__).parent / "stored"

Advance = Callable[[float], None]
Opened = tuple[QueueBackend, Advance]


def write_sqlite(path: Path) -> None:
    path.write_bytes(gzip.decompress((STORED / "sqlite.db.gz").read_bytes()))


def write_postgres(schema: str) -> None:
    with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:
        for text in ("CREATE SCHEMA {schema}", (STORED / "postgres.sql").read_text()):
            connection.execute(text.replace("{schema}", schema).encode())


def write_redis(url: str) -> None:
    with closing(redis.Redis.from_url(url)) as client:
        for key, milliseconds, value in json.loads((STORED / "redis.json").read_text()):
            client.restore(key, max(0, milliseconds), base64.b64decode(value))


@contextmanager
def open_sqlite(folder: Path) -> Iterator[Opened]:
    path, clock = folder / "jobs.db", ManualClock()
    write_sqlite(path)
    with closing(SqliteBackend(str(path), clock=clock, boot=BOOT)) as backend:
        yield backend, clock.advance


@contextmanager
def open_postgres(folder: Path) -> Iterator[Opened]:
    """The functions are not stored: as after an upgrade, the last migration brings those of today."""
    del folder
    clock, schema = ManualClock(), fresh_name()
    with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:

        def do(sql: str) -> None:
            connection.execute(sql.replace("{schema}", schema).encode())

        def advance(seconds: float) -> None:
            clock.advance(seconds)
            do(f"UPDATE {{schema}}.turned SET moment = {round(clock.wall() * 1e6)}")

        write_postgres(schema)
        with closing(PostgresBackend.from_url(shared_postgres().url(), clock=clock, schema=schema)) as backend:
            backend.prepare()
            do("DROP TABLE {schema}.turned")
            do(TURNED)
            advance(0.0)
            yield backend, advance


@contextmanager
def open_redis(folder: Path) -> Iterator[Opened]:
    with closing(RedisHarness(folder)) as harness:
        url = harness._server.url
        write_redis(url)
        with closing(RedisBackend.from_url(url, clock=harness.clock, prefix="stored")) as backend:
            yield backend, harness.advance


@contextmanager
def open_beanstalk(folder: Path) -> Iterator[Opened]:
    clock = ManualClock()
    (folder / "binlog").mkdir()
    (folder / "binlog" / "binlog.1").write_bytes(gzip.decompress((STORED / "beanstalk.binlog.gz").read_bytes()))
    with (
        BeanstalkServer(folder, turned=True, binlog=True) as server,
        closing(BeanstalkBackend.from_url(server.url, clock=clock)) as backend,
    ):

        def advance(seconds: float) -> None:
            clock.advance(seconds)
            server.turn_to(clock.wall())

        yield backend, advance


OPENERS = {"sqlite": open_sqlite, "postgres": open_postgres, "redis": open_redis, "beanstalk": open_beanstalk}
with_keys = pytest.mark.parametrize("stored", ["sqlite", "postgres", "redis"], indirect=True)
"""beanstalkd has neither keys nor claims, and a lease ends with its connection."""


@pytest.fixture(params=OPENERS)
def stored(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the code that wrote the store said about it."""
    found: dict[str, Any] = json.loads((STORED / f"{request.param}.seen.json").read_text())
    return found | {"broker": request.param}


@pytest.fixture
def opened(stored: dict[str, Any], tmp_path: Path) -> Iterator[Opened]:
    with OPENERS[stored["broker"]](tmp_path) as opened:
        yield opened


def test_everything_is_shown_as_it_was(stored: dict[str, Any], opened: Opened) -> None:
    seen = snapshot(opened[0])
    assert {name: part for name, part in seen.items() if name != "messages"} == {
        name: part for name, part in stored["seen"].items() if name != "messages"
    }
    assert seen["messages"] == stored["seen"]["messages"]


@with_keys
def test_what_a_pool_held_is_settled_and_what_it_asked_is_remembered(stored: dict[str, Any], opened: Opened) -> None:
    backend, _ = opened
    held = leases(stored["leases"])
    assert backend.settle_many([(held["answered"], Ack())], call_id=CALL) == [Settled.ALREADY]
    [again] = backend.fetch_many(QUEUE, limit=1, ttl=600.0, fetch_id=FETCH)
    assert (again.id, again.owner_token, again.body) == (
        "refetched",
        held["refetched"].owner_token,
        held["refetched"].body,
    )
    assert backend.renew(held["leased"], 600.0).owner_token == held["leased"].owner_token
    names = ("leased", "refetched", "guarded", "lost")
    assert backend.settle_many([(held[name], Ack()) for name in names]) == [Settled.OK] * 4
    assert backend.settle_many([(held["leased"], Ack())]) == [Settled.NOT_IN_FLIGHT]
    assert backend.keys.holders(QUEUE, "printer") == []


@with_keys
def test_keys_rates_and_ids_are_still_known(stored: dict[str, Any], opened: Opened) -> None:
    backend, _ = opened
    [known, spent, fresh] = backend.enqueue_many(
        [a_job(unique=True, idempotency_key=f"order-{number}") for number in (2, 1, 9)]
    )
    assert (known, spent) == ("unique", "acked")
    backend.enqueue_many([a_job(identifier=name) for name in ("waiting", "leased", "dead", "acked", "claimed-job")])
    assert not backend.keys.first_run(QUEUE, "seen", 3600.0)
    guarded = leases(stored["leases"])["guarded"]
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert lease.id == fresh
    assert [begun.answer for begun in backend.keys.begin_many([(lease, GUARDS)])] == [Begin.HELD]
    assert backend.ack(guarded) is Settled.OK
    assert [begun.answer for begun in backend.keys.begin_many([(lease, GUARDS)])] == [Begin.DONE]
    assert backend.keys.take(QUEUE, GUARDS.rates[0], "another") == 0.0
    assert backend.keys.take(QUEUE, GUARDS.rates[0], "one more") > 0.0


@with_keys
def test_claims_and_posts_go_on(opened: Opened) -> None:
    backend, advance = opened
    held = backend.claims.renew(POSTS, CLAIM, ttl=60.0)
    assert [message.id for message in held.messages] == ["claimed-job", "claimed-post"]
    advance(60.0)
    assert [message.id for message in backend.claims.list_free(POSTS)] == [
        "claimed-job", "claimed-post", "free", "later", "ending",
    ]  # fmt: skip
    advance(60.0)
    assert backend.claims.stats(POSTS).expired == 1
    assert {message.id: message.body for message in backend.claims.pop(POSTS, limit=4)}["free"] == b"\0free"
    assert backend.claims.stats(POSTS).total == 0


def test_all_jobs_are_run_and_the_dead_raised(stored: dict[str, Any], opened: Opened) -> None:
    backend, advance = opened
    held = set(stored["leases"]) - {"answered"}
    advance(600.0)
    assert {message.id: message.crashes for message in backend.reap(QUEUE)} == dict.fromkeys(held, 1)
    assert backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.RETRY) == 1
    advance(60.0)
    found = {lease.id: lease for lease in backend.fetch_many(QUEUE, limit=100)}
    others = {"unique", "whole"} if held else set()
    assert set(found) == {"dead", "retried", "crashed", "waiting", "delayed", "begun"} | held | others
    assert (found["retried"].attempts, found["retried"].deliveries, found["crashed"].crashes) == (1, 2, 1)
    assert {found[name].deliveries for name in held} <= {2}
    assert found["waiting"].envelope.payload == {"text": "Grüße"}
    assert found["waiting"].enqueued_at == START
    inspector = LeaseInspector(SIGNER, {})
    ended = {name: inspector.inspect(lease, lambda: START + 660.0) for name, lease in found.items()}
    assert ended == dict.fromkeys(found), "their signatures are right, and what has begun does not expire"
    assert backend.settle_many([(lease, Ack()) for lease in found.values()]) == [Settled.OK] * len(found)
    assert (backend.stats(QUEUE).waiting, backend.stats(QUEUE).leased, backend.stats(QUEUE).dead) == (0, 0, 0)


Table = tuple[list[str], list[tuple[Any, ...]]]
"""Names of the columns, and the rows."""


def sqlite_tables(path: Path) -> dict[str, Table]:
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: a_table(connection.execute(f"SELECT * FROM {name}")) for name in names}


def postgres_tables(schema: str) -> dict[str, Table]:
    with psycopg.connect(shared_postgres().url()) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
        names = {name for (name,) in found} - {"migrations", "turned"}
        return {name: a_table(connection.execute(f"SELECT * FROM {schema}.{name}".encode())) for name in names}


def a_table(cursor: Any) -> Table:
    return [column[0] for column in cursor.description], list(cursor)


def of_columns(table: Table, names: list[str]) -> list[str]:
    at = [table[0].index(name) for name in names]
    return sorted(repr([row[index] for index in at]) for row in table[1])


def redis_keys(url: str) -> dict[bytes, Any]:
    with closing(redis.Redis.from_url(url)) as client:
        read: dict[bytes | str, Callable[[Any], Any]] = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"set": client.smembers,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        }
        return {key: read[client.type(key)](key) for key in client.scan_iter()}


def assert_read_by_that_code(new: dict[str, Table], old: dict[str, Table]) -> None:
    for name, (columns, rows) in old.items():
        assert of_columns(new[name], columns) == of_columns((columns, rows), columns), name


class TestTodaysCodeWritesWhatThatCodeReads:
    """So a pool of that version goes on beside a new one."""

    def test_sqlite(self, tmp_path: Path) -> None:
        write_sqlite(tmp_path / "old.db")
        new = tmp_path / "new.db"
        with closing(SqliteBackend(str(new), clock=ManualClock(), boot=BOOT, signer=SIGNER)) as backend, repeatable():
            fill(backend)
        assert_read_by_that_code(sqlite_tables(new), sqlite_tables(tmp_path / "old.db"))

    def test_postgres(self) -> None:
        old, new = fresh_name(), fresh_name()
        write_postgres(old)
        url, clock = shared_postgres().url(), ManualClock()
        with closing(PostgresBackend.from_url(url, clock=clock, schema=new, signer=SIGNER)) as backend, repeatable():
            backend.prepare()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(TURNED.replace("{schema}", new).encode())
                connection.execute(f"UPDATE {new}.turned SET moment = {round(START * 1e6)}".encode())
            fill(backend)
        assert_read_by_that_code(postgres_tables(new), postgres_tables(old))

    def test_postgres_has_the_functions_that_a_connected_pool_calls(self) -> None:
        new = fresh_name()
        with closing(PostgresBackend.from_url(shared_postgres().url(), schema=new)) as backend:
            backend.prepare()
        there = functions(new)
        # Parts of `settle`, of `lease` and claims, and of `bring`, which alone call them.
        within = {"is_known", "mark_done", "settle_acks", "settle_one"}
        within |= {"take_free", "take_fresh", "take_unknown"}
        within |= {"fetch", "take_start"}  # kept for pools that were older still

        def is_there(name: str, parameters: str, result: str) -> bool:
            """More parameters than then have defaults: Postgres refuses a call that leaves out others."""
            same = [(each[1], each[2]) for each in there if each[0] == name]
            return any(new.startswith(parameters) and returned == result for new, returned in same)

        missing = [each for each in json.loads((STORED / "postgres.functions.json").read_text()) if not is_there(*each)]
        assert {name for name, *_ in missing} <= within, missing

    def test_redis(self, tmp_path: Path) -> None:
        with closing(RedisHarness(tmp_path)) as harness:
            url = harness._server.url
            write_redis(url)
            old = redis_keys(url)
            harness._server.flush()
            backend = RedisBackend.from_url(url, clock=harness.clock, prefix="stored", signer=SIGNER)
            with closing(backend), repeatable():
                fill(backend)
            new = redis_keys(url)
        done = b"stored:{reports}:done:seen"  # that code reads until when alone, and passes over the call behind it
        new[done] = new[done][: len(old[done])]
        assert {key: new.get(key) for key in old} == old
