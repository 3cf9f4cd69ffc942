"""`jobpool doctor`: on machines, files and servers that really are ill, with its exit code.

Whether it is a program is shown on the well machine; the other tests call its command in their own process.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cli_shell import LIMIT, Shell
from click.testing import Result
from support.servers import PostgresServer, RedisServer, fresh_name, shared_postgres
from support.servers.pgbouncer import Pgbouncer
from support.servers.redis_server import DURABLE
from support.tiers import more

from jobpool.broker.opening import open_backend

KEY = "0123456789abcdef"
HERE = ("--ignore", "sqlite.file-system", "--ignore", "sqlite.space")
"""The folder of a test may be in memory, and its disk nearly full: that is the machine's affair."""


@pytest.fixture
def ward(shell: Shell) -> Shell:
    """A shell with a database, under a supervisor that waits long enough."""
    open_backend(f"sqlite:///{shell.directory / 'jobpool.db'}").close()
    shell.environment |= {"TIMEOUT_STOP_SEC": "300", "TZ": "UTC"}
    return shell


def doctor(ward: Shell, *words: str) -> Result:
    return ward.call("doctor", *words)


def told(ward: Shell, *words: str) -> tuple[dict[str, dict[str, str]], int]:
    """The worst finding of each check, and the exit code; every bad one has its mend."""
    done = doctor(ward, "--json", *words)
    document = json.loads(done.stdout)
    ranks = ["ok", "note", "warning", "problem"]
    findings = sorted(document["findings"], key=lambda found: ranks.index(found["level"]))
    assert all(found["mend"] for found in findings if found["level"] in ranks[2:])
    assert document["well"] is (done.exit_code == 0)
    return {found["check"]: found for found in findings}, done.exit_code


def test_all_is_well(ward: Shell) -> None:
    done = ward.run("doctor", "--json", *HERE)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["well"]
    levels = {finding["check"]: finding["level"] for finding in document["findings"]}
    assert set(levels.values()) == {"ok", "note"}
    found, code = told(ward, *HERE)
    assert ({check: finding["level"] for check, finding in found.items()}, code) == (levels, 0)
    assert doctor(ward, "--strict", *HERE).exit_code == 0


def test_it_prints_a_line_a_check_and_a_summary(ward: Shell) -> None:
    done = doctor(ward, "--ttl", "4", *HERE)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert len(lines) == len({line.split()[1] for line in lines})
    [ttl] = [line for line in lines if line.split()[1] == "ttl"]
    assert ttl.startswith("problem  ttl ")
    assert "ttl is 4 s, and a call to the broker may take 5 s: " in ttl
    assert "; set ttl to 15 or more, or ?timeout= in backend to 1.3 or less" in ttl
    assert done.stderr.strip().endswith("checks: 1 problem")


def test_what_is_to_be_ignored_is_and_a_name_that_is_none_is_told(ward: Shell) -> None:
    done = doctor(ward, "--ttl", "4", "--ignore", "ttl", "--ignore", "tttl", *HERE)
    assert done.exit_code == 0
    assert "no check to ignore is called tttl" in done.stderr


@pytest.mark.parametrize(
    ("words", "environment", "check", "level", "text"),
    [
        (["--ttl", "4"], {}, "ttl", "problem", "loses leases"),
        (["--default-timeout", "0"], {}, "timeout", "warning", "unlimited"),
        (["--retry", "fixed attempts=1"], {}, "retry", "problem", "no job is ever tried again"),
        (["--max-crashes", "0"], {}, "crashes", "warning", "for ever"),
        (["-Q", "a", "--rate-limit", "mail=5"], {}, "settings", "warning", "does not serve"),
        ([], {"JOBPOOL_SIGNING_KEY": "short"}, "signing-key", "problem", "fewer than 16"),
        (["--stop-grace", "60"], {"TIMEOUT_STOP_SEC": "30"}, "stop-grace", "problem", "in the middle of its stop"),
        ([], {"TZ": "Mars/Olympus"}, "time-zone", "warning", "names no zone"),
        (["-A", "absent.jobs"], {}, "handlers", "problem", "no module 'absent'"),
        (["-b", "nonsense"], {}, "broker", "problem", "is not a URL: write scheme://"),
        (["-b", "memory://"], {}, "memory.place", "problem", "they end with it"),
        *more(
            (["-b", "sqlite:///jobpool.db?timeout=25"], {}, "ttl", "problem", "loses leases"),
            (["--memory-limit", "900G", "-w", "1000"], {}, "memory", "problem", "out-of-memory killer"),
            (["-b", "sqlite:////nowhere/at/all.db"], {}, "broker", "problem", "does not exist: create it"),
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_each_fault_of_the_configuration(
    ward: Shell, words: list[str], environment: dict[str, str], check: str, level: str, text: str
) -> None:
    ward.environment |= environment
    found, code = told(ward, *words, *HERE)
    assert found[check]["level"] == level
    assert text in " ".join(found[check].values())
    assert code == (1 if level == "problem" else 0)
    assert doctor(ward, "--strict", *words, *HERE).exit_code == 1


def test_too_few_open_files(ward: Shell) -> None:
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 256; exec {sys.executable} -m jobpool.cli.main doctor -w 64"],
        cwd=ward.directory,
        env=ward.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 1
    assert "64 workers need up to 1160 open files, and 256 are allowed: the pool does not start; raise" in done.stdout


def test_an_empty_key_is_wrong_usage_as_everywhere(ward: Shell) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = ""
    assert doctor(ward).exit_code == 2


# --- SQLite -----------------------------------------------------------------------------------------------------------


def test_a_file_that_somebody_took_out_of_its_journal_mode(ward: Shell) -> None:
    """The mode that is found is `delete`, whatever was set: only WAL and its absence are kept in the file."""
    assert doctor(ward, *HERE).exit_code == 0
    other = sqlite3.connect(ward.directory / "jobpool.db")
    other.execute("PRAGMA journal_mode = truncate")
    other.close()
    found, code = told(ward, *HERE)
    assert code == 1
    assert found["sqlite.journal"]["found"] == "journal_mode was delete until now"
    assert doctor(ward, *HERE).exit_code == 0


# --- Redis ------------------------------------------------------------------------------------------------------------

RunRedis = Callable[..., RedisServer]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RunRedis]:
    """Starts servers with the configuration of the test."""
    started: list[RedisServer] = []

    def start(config: dict[str, str] | None = None, **options: Any) -> RedisServer:
        started.append(RedisServer(tmp_path / f"redis{len(started)}", config=config, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()


def test_a_redis_that_loses_nothing(ward: Shell, redis: RunRedis) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    found, code = told(ward, "-b", redis(DURABLE).url)
    assert code == 0
    assert {found[name]["level"] for name in ("broker", "redis.eviction", "redis.persistence", "broker.clock")} == {
        "ok"
    }


@pytest.mark.parametrize(
    ("config", "check", "level", "text"),
    [
        ({"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}, "redis.eviction", "problem", "set noeviction"),
        ({"appendonly": "no"}, "redis.persistence", "problem", "loses every message"),
        *more(
            ({"maxmemory": "64mb", "maxmemory-policy": "volatile-lru"}, "redis.eviction", "problem", "set noeviction"),
            ({"appendonly": "no", "save": "3600 1"}, "redis.persistence", "problem", "since it last saved"),
            ({"appendfsync": "everysec"}, "redis.persistence", "warning", "up to two seconds"),
            ({"appendfsync": "no"}, "redis.persistence", "problem", "half a minute"),
            ({"no-appendfsync-on-rewrite": "yes"}, "redis.persistence", "warning", "while it rewrites its file"),
        ),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_each_fault_of_a_redis(
    ward: Shell, redis: RunRedis, config: dict[str, str], check: str, level: str, text: str
) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    url = redis(DURABLE | config).url
    found, code = told(ward, "-b", url)
    assert found[check]["level"] == level
    assert text in " ".join(found[check].values())
    assert code == (1 if level == "problem" else 0)


def test_replicas_that_nobody_waits_for(ward: Shell, redis: RunRedis) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    master = redis(DURABLE)
    replica = redis(DURABLE | {"replicaof": f"{master.host} {master.port}"})
    found, code = told(ward, "-b", replica.url)
    assert (found["redis.role"]["level"], code) == ("problem", 1)
    found, code = told(ward, "-b", master.url)
    assert (found["redis.replication"]["level"], code) == ("problem", 1)


# --- Postgres ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def role() -> Iterator[str]:
    """A user of the shared server, whose settings are the test's own."""
    name = fresh_name()
    _ask(f'CREATE ROLE "{name}" LOGIN SUPERUSER')
    yield name
    _ask(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
    _ask(f'DROP OWNED BY "{name}"')
    _ask(f'DROP ROLE "{name}"')


def _ask(sql: str) -> None:
    with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:
        connection.execute(sql.encode())


def _url(role: str, host: str = "", port: int = 0) -> str:
    server = shared_postgres()
    return f"postgresql://{role}@{host or server.host}:{port or server.port}/postgres?schema={role}&connect_timeout=30"


SHARED = ("--ignore", "postgres.fsync", "--ignore", "postgres.full_page_writes", "--ignore", "postgres.transactions")
"""The tests' shared server does not wait for the disk, and others may use it."""


def test_a_postgres_that_loses_nothing(ward: Shell, role: str) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    found, code = told(ward, "-b", _url(role), *SHARED)
    assert code == 0
    wanted = ("broker", "broker.clock", "postgres.synchronous_commit", "postgres.autovacuum", "postgres.tables")
    assert {found[name]["level"] for name in (*wanted, "postgres.pooler")} == {"ok"}


@pytest.mark.parametrize(
    ("setting", "check", "level", "text"),
    [
        ("synchronous_commit = off", "postgres.synchronous_commit", "problem", "jobs that were enqueued are lost"),
        ("synchronous_commit = local", "postgres.synchronous_commit", "problem", "a failover forgets"),
        (
            "default_transaction_isolation = serializable",
            "postgres.default_transaction_isolation",
            "warning",
            "collide",
        ),
    ],
)
def test_each_fault_of_a_postgres_user(ward: Shell, role: str, setting: str, check: str, level: str, text: str) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    _ask(f'ALTER ROLE "{role}" SET {setting}')
    found, code = told(ward, "-b", _url(role), *SHARED)
    assert found[check]["level"] == level
    assert text in " ".join(found[check].values())
    assert code == (1 if level == "problem" else 0)


def test_a_table_that_is_not_swept(ward: Shell, role: str) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    assert told(ward, "-b", _url(role), *SHARED)[1] == 0
    _ask(f'ALTER TABLE "{role}".messages SET (autovacuum_enabled = false)')
    found, code = told(ward, "-b", _url(role), *SHARED)
    assert (found["postgres.tables"]["level"], code) == ("problem", 1)
    assert f"run ALTER TABLE {role}.messages RESET (autovacuum_enabled)" == found["postgres.tables"]["mend"]


def test_a_server_that_does_not_wait_for_its_disk(ward: Shell, tmp_path: Path) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    config = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}
    with PostgresServer(tmp_path / "postgres", config=config) as server:
        found, code = told(ward, "-b", server.url())
    assert code == 1
    assert {found[f"postgres.{name}"]["level"] for name in config} == {"problem"}


@pytest.mark.parametrize(
    ("mode", "check", "level", "text"),
    [
        *more(("session", "postgres.pooler", "warning", "LISTEN hears nothing")),
        ("transaction", "postgres.pooler", "warning", "LISTEN hears nothing"),
        ("statement", "broker", "problem", "a pooler that allows no transactions: set pool_mode = transaction"),
    ],
)
def test_a_pooler_in_between(
    ward: Shell, role: str, tmp_path: Path, mode: str, check: str, level: str, text: str
) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    behind = _url(role).partition("?")[0]
    with Pgbouncer(tmp_path / "pooler", behind, config={"pool_mode": mode}) as pooler:
        found, code = told(ward, "-b", pooler.url(f"schema={role}&connect_timeout=30"), *SHARED)
    assert found[check]["level"] == level
    assert text in " ".join(found[check].values())
    assert code == (1 if level == "problem" else 0)
