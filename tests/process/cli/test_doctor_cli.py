"""`jobpool doctor`: on machines, files and servers that really are ill, with its exit code.

Whether it is a program is shown on the well machine; the other tests call its command in their own process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cli_shell import Shell
from support.servers import RedisServer, fresh_name, shared_postgres
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


def told(ward: Shell, *words: str) -> tuple[dict[str, dict[str, str]], int]:
    """The worst finding of each check, and the exit code; every bad one has its mend."""
    done = ward.call("doctor", "--json", *words)
    document = json.loads(done.stdout)
    ranks = ["ok", "note", "warning", "problem"]
    findings = sorted(document["findings"], key=lambda found: ranks.index(found["level"]))
    assert all(found["mend"] for found in findings if found["level"] in ranks[2:])
    assert document["well"] is (done.exit_code == 0)
    return {found["check"]: found for found in findings}, done.exit_code


def test_all_is_well(ward: Shell) -> None:
    done = ward.run("doctor", "--json", *HERE, code=0)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["well"]
    levels = {finding["check"]: finding["level"] for finding in document["findings"]}
    assert set(levels.values()) == {"ok", "note"}
    found, code = told(ward, *HERE)
    assert ({check: finding["level"] for check, finding in found.items()}, code) == (levels, 0)
    ward.call("doctor", "--strict", *HERE, code=0)


def test_it_prints_a_line_a_check_and_a_summary(ward: Shell) -> None:
    done = ward.call("doctor", "--ttl", "4", *HERE, code=1)
    lines = done.stdout.splitlines()
    assert len(lines) == len({line.split()[1] for line in lines})
    [ttl] = [line for line in lines if line.split()[1] == "ttl"]
    assert ttl.startswith("problem  ttl ")
    assert "ttl is 4 s, and a call to the broker may take 5 s: " in ttl
    assert "; set ttl to 15 or more, or ?timeout= in backend to 1.3 or less" in ttl
    assert done.stderr.strip().endswith("checks: 1 problem")


def test_what_is_to_be_ignored_is_and_a_name_that_is_none_is_told(ward: Shell) -> None:
    done = ward.call("doctor", "--ttl", "4", "--ignore", "ttl", "--ignore", "tttl", *HERE, code=0)
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
        (["--stop-grace", "60"], {"TIMEOUT_STOP_SEC": "30"}, "stop-grace", "problem", "before its stop is over"),
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
    ward.call("doctor", "--strict", *words, *HERE, code=1)


def test_too_few_open_files(ward: Shell) -> None:
    command = f"ulimit -n 256; exec {sys.executable} -m jobpool doctor -w 64"
    done = ward.run(program=("sh", "-c", command), code=1)
    assert "64 workers need up to 1160 open files, and 256 are allowed: the pool does not start; raise" in done.stdout


def test_an_empty_key_is_wrong_usage_as_everywhere(ward: Shell) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = ""
    ward.call("doctor", code=2)


# --- brokers: one that is well, and one that is ill; each of their checks has a test beside its backend ---------------


def test_a_redis_that_loses_nothing_and_one_that_forgets(ward: Shell, tmp_path: Path) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    for keeps, level in (("yes", "ok"), ("no", "problem")):
        with RedisServer(tmp_path / keeps, config=DURABLE | {"appendonly": keeps}) as server:
            found, code = told(ward, "-b", server.url)
        assert (code, found["redis.persistence"]["level"]) == (int(level == "problem"), level)
        assert {found[name]["level"] for name in ("broker", "broker.clock", "redis.eviction")} == {"ok"}


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


def _url(role: str) -> str:
    server = shared_postgres()
    return f"postgresql://{role}@{server.host}:{server.port}/postgres?schema={role}&connect_timeout=30"


SHARED = ("--ignore", "postgres.fsync", "--ignore", "postgres.full_page_writes", "--ignore", "postgres.transactions")
"""The tests' shared server does not wait for the disk, and others may use it."""


def test_a_postgres_that_loses_nothing_and_one_that_forgets(ward: Shell, role: str) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    found, code = told(ward, "-b", _url(role), *SHARED)
    wanted = (
        "broker",
        "broker.clock",
        *(f"postgres.{n}" for n in ("synchronous_commit", "autovacuum", "tables", "pooler")),
    )
    assert (code, {found[name]["level"] for name in wanted}) == (0, {"ok"})
    _ask(f'ALTER ROLE "{role}" SET synchronous_commit = off')
    found, code = told(ward, "-b", _url(role), *SHARED)
    assert (code, found["postgres.synchronous_commit"]["level"]) == (1, "problem")


def test_a_pooler_that_allows_no_transactions(ward: Shell, role: str, tmp_path: Path) -> None:
    ward.environment["JOBPOOL_SIGNING_KEY"] = KEY
    behind = _url(role).partition("?")[0]
    with Pgbouncer(tmp_path / "pooler", behind, config={"pool_mode": "statement"}) as pooler:
        found, code = told(ward, "-b", pooler.url(f"schema={role}&connect_timeout=30"), *SHARED)
    assert (code, found["broker"]["level"]) == (1, "problem")
    text = "a pooler that allows no transactions: set pool_mode = transaction"
    assert text in " ".join(found["broker"].values())
