"""What the pages on transactions, Redis and Postgres say one can run or type: run and typed, on real servers."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.jobs import a_job, at, numbered
from support.pages import DOCS, LIMIT, blocks, page, run, section
from support.servers import fresh_name, shared_redis

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError
from jobpool.message.guards import Guards, Hold
from jobpool.message.settlement import Abandon
from jobpool_backends.redis.keyspace import KeyNames

ENTRIES = [(1, 1200), (2, 350), (3, 9900)]
"""The ledger of the shop, when each order was booked once."""


@pytest.fixture
def redis_url() -> Iterator[str]:
    """URL of an empty Redis database, which no other test uses."""
    server = shared_redis()
    url = f"redis://{server.host}:{server.port}/7"
    yield url
    subprocess.run(["redis-cli", "-u", url, "FLUSHDB"], check=True, capture_output=True)


# --- transactions -------------------------------------------------------------------------------------------


def test_the_shop_in_sqlite_books_every_order_once(tmp_path: Path) -> None:
    [code] = [block for block in blocks(page("transactions")) if block.startswith("# orders.py\n")]
    run_shop(code, "sqlite:///shop.db", tmp_path, {})

    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert sorted(shop.execute("SELECT * FROM ledger")) == ENTRIES


def test_the_shop_in_postgres_books_every_order_once(tmp_path: Path, database: str) -> None:
    code = (DOCS / "cookbook" / "orders_pg.py").read_text("utf-8")
    run_shop(code, database, tmp_path, {"SHOP_DATABASE": database})

    with psycopg.connect(database) as shop:
        assert sorted(shop.execute("SELECT * FROM ledger")) == ENTRIES


def run_shop(code: str, url: str, folder: Path, variables: Mapping[str, Any]) -> None:
    """Place the orders and let a pool work until nothing is left."""
    (folder / "shop.py").write_text(code)
    words = ["--backend", url, "--queue", "orders", "--app", "shop.py", "--until-empty", "--fail-on-dead", "-w", "2"]
    run(folder, "python", "shop.py", **variables)
    run(folder, "jobpool", *words, **variables)


# --- looking inside, by hand --------------------------------------------------------------------------------


def fill(backend: QueueBackend) -> str:
    """A message in each state on the queue of the examples; the id of the dead one."""
    backend.enqueue_many(numbered(4))
    backend.enqueue(a_job(scheduled_at=at(time.time() + 600)))
    leases = backend.fetch_many("reports", limit=2, ttl=60)
    backend.settle_many([(leases[0], Abandon("timeout", "took too long"))])
    return leases[0].id


def test_every_look_into_redis_can_be_typed(redis_url: str) -> None:
    with closing(open_backend(redis_url)) as backend:
        ident = fill(backend)
        said = {line: type_it(line, redis_url, ident) for line in documented_shell("redis", "Looking inside")}
        assert len(said) >= 7
        assert [line for line, answer in said.items() if not answer] == []
        throw_away = [line for line in said if "UNLINK" in line]
        assert throw_away
        assert backend.queues() == []


def type_it(line: str, url: str, ident: str) -> str:
    """What the command answers, for a message that is there."""
    member = asked("redis-cli", "-u", url, "HGET", KeyNames("jobpool").one("reports", "ids"), ident).partition(" ")[0]
    line = line.replace("9f2c51d07a66b3e4", ident).replace("0051763719200123456", member)
    answer = asked("sh", "-c", line, URL=url)
    assert "ERR" not in answer, f"{line}: {answer}"
    return answer


def asked(*command: str, **variables: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **variables},
        text=True,
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def test_every_look_into_postgres_can_be_typed(database: str) -> None:
    with closing(open_backend(database)) as backend, psycopg.connect(database, autocommit=True) as connection:
        ident = fill(backend)
        [lease] = backend.fetch_many("reports", limit=1, ttl=60)
        assert backend.keys.begin_many([(lease, Guards(holds=(Hold("queue"),)))])[0]
        assert backend.keys.first_run("reports", "order-17")
        statements = documented_sql("postgres", "Looking inside")
        assert len(statements) >= 4
        for statement in statements:
            rows = connection.execute(statement.replace("9f2c51d07a66b3e4", ident).encode()).fetchall()
            assert rows, statement


def test_the_rights_on_postgres_are_enough_and_no_more_than_needed(database: str) -> None:
    names = [fresh_name(role) for role in ("jobs", "pools", "producers")]
    with psycopg.connect(database, autocommit=True) as admin:
        for name in names:
            admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        create, *grants = documented_sql("postgres", "Users and rights")
        renamed: Callable[[str], bytes] = lambda sql: re.sub(  # noqa: E731 - three lines, used twice
            r"\b(jobs|pools|producers)\b", lambda match: names[("jobs", "pools", "producers").index(match[0])], sql
        ).encode()
        admin.execute(renamed(create))
        with closing(open_backend(as_user(database, names[0]))) as owner:
            owner.prepare()
        with (
            closing(open_backend(as_user(database, names[2]))) as stranger,
            pytest.raises(ConfigurationError, match="GRANT"),
        ):
            stranger.enqueue(a_job())
        for grant in grants:
            admin.execute(renamed(grant))
        with closing(open_backend(as_user(database, names[1]))) as pool:
            fill(pool)
            pool.reap("reports")
        for name in names:
            admin.execute(f"DROP OWNED BY {name} CASCADE".encode())
            admin.execute(f"DROP ROLE {name}".encode())


def as_user(url: str, user: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(make_conninfo(url))
    return f"postgresql://{user}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def test_the_scaler_for_postgres_counts_what_waits_and_what_runs(database: str) -> None:
    manifest = (DOCS / "deploy" / "kubernetes" / "scale-on-postgres.yaml").read_text("utf-8")
    [query] = re.findall(r"query: (.*)", manifest)
    with closing(open_backend(database)) as backend, psycopg.connect(database, autocommit=True) as connection:
        fill(backend)
        assert connection.execute(query.encode()).fetchone() == (3,)


def test_the_scaler_for_redis_adds_up_what_waits_and_what_runs(redis_url: str) -> None:
    manifest = (DOCS / "deploy" / "kubernetes" / "scale-on-redis.yaml").read_text("utf-8")
    names = re.findall(r'listName: "(.*)"', manifest)
    with closing(open_backend(redis_url)) as backend:
        fill(backend)
        assert [asked("redis-cli", "-u", redis_url, "ZCARD", name) for name in names] == ["2", "1"]


# --- the pages ----------------------------------------------------------------------------------------------


def documented_shell(name: str, heading: str) -> list[str]:
    """The lines that one can type there."""
    return [line for block in blocks(section(page(name), heading), "") for line in block.splitlines()]


def documented_sql(name: str, heading: str) -> list[str]:
    """The statements there."""
    found = blocks(section(page(name), heading), "sql")
    statements = [part.strip() for block in found for part in re.sub(r"--.*", "", block).split(";")]
    return [statement for statement in statements if statement]
