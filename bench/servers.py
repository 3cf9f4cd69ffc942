"""A Redis and a Postgres of one's own, started as the tests start theirs, in a directory that goes away with them."""

from __future__ import annotations

import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, LiteralString

import psycopg
from psycopg import sql
from redis import Redis
from support.servers import Server as Program
from support.servers import ServerFailed as ServerFailed
from support.servers import find_program, postgres_server, redis_server

from bench.plan import Plan
from bench.processes import family_seconds

IN_MEMORY: dict[str, str] = {}
"""Redis that keeps nothing on a disk."""

EVERY_SECOND = {"appendonly": "yes", "appendfsync": "everysec"}
"""Redis that writes a log, and syncs it once a second."""

END = "that is all"
"""Said by who listens to a Redis, to know that everything before has been heard."""

DURABLE = postgres_server.DURABLE | {"synchronous_commit": "on", "max_wal_size": "4GB", "shared_buffers": "256MB"}
"""Every commit waits for its disk. The two sizes keep checkpoints and evictions out of short samples, for all alike."""


@dataclass(slots=True)
class Asked:
    """The number of requests to a server: commands or transactions of clients, and commands that its scripts made of
    them.
    """

    commands: int = 0
    within: int = 0


class Server(ABC):
    """One that runs.

    Attributes:
        namespace: The option of jobpool's URLs that keeps two of them apart in one place.
    """

    namespace: ClassVar[str]

    def __init__(self, program: Program, url: str) -> None:
        self.url = url
        self._program = program

    @property
    def pid(self) -> int:
        """Of its first process; others may hang below it."""
        return self._program.pid

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all its processes, those that have ended included."""
        return family_seconds(self.pid)

    @abstractmethod
    def fresh(self) -> AbstractContextManager[str]:
        """Return the URL of an empty place in it; what is put there goes away with the context."""

    @abstractmethod
    def settle_down(self, url: str) -> None:
        """Let it do at once what it would do some time later, in the midst of a measurement."""

    @abstractmethod
    def asked(self, url: str) -> AbstractContextManager[Asked]:
        """Count what clients ask of this place meanwhile. The answer is there when the context has ended."""


def two_stores(server: Server, url: str) -> tuple[str, str]:
    """Return two in one place, for what is measured by turns beside few and beside many."""
    return f"{url}?{server.namespace}=few", f"{url}?{server.namespace}=many"


class RedisServer(Server):
    """One place at a time: the whole of database 0."""

    namespace = "prefix"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        with Redis.from_url(self.url) as client:
            client.flushall()
            yield self.url
            client.flushall()

    def settle_down(self, url: str) -> None:
        """Do nothing: it puts nothing off."""

    @contextmanager
    def asked(self, url: str) -> Iterator[Asked]:
        asked = Asked()
        with Redis.from_url(url) as client, Redis.from_url(url) as ear:
            client.ping()  # connects, before anybody listens
            with ear.monitor() as heard:
                yield asked
                client.echo(END)
                for each in heard.listen():
                    if each["command"] == f"ECHO {END}":
                        break
                    asked.within += each["client_type"] == "lua"
                    asked.commands += each["client_type"] != "lua"


class PostgresServer(Server):
    """A place is a database."""

    namespace = "schema"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        name = f"bench_{time.monotonic_ns()}"
        self._do("create database {}", name)
        try:
            yield f"{self.url.rpartition('/')[0]}/{name}"
        finally:
            self._do("drop database {} with (force)", name)

    @contextmanager
    def asked(self, url: str) -> Iterator[Asked]:
        asked = Asked()
        before = self._transactions(url)
        yield asked
        asked.commands = self._transactions(url) - before

    def _transactions(self, url: str) -> int:
        """Ask from another database, so that the question does not count itself."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(
                "select xact_commit + xact_rollback from pg_stat_database where datname = %s", [url.rpartition("/")[2]]
            ).fetchone()
        return int(row[0]) if row else 0

    def settle_down(self, url: str) -> None:
        """Do what autovacuum does after many inserts."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("vacuum analyze")

    def _do(self, command: LiteralString, name: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(command).format(sql.Identifier(name)))


@contextmanager
def redis(directory: Path, config: Mapping[str, str] = IN_MEMORY) -> Iterator[Server]:
    """Yield a Redis with these directives, its files in `directory`. Raises `ServerFailed`."""
    with redis_server.RedisServer(directory, config=config) as program:
        yield RedisServer(program, program.url)


@contextmanager
def postgres(directory: Path) -> Iterator[Server]:
    """Yield a `DURABLE` Postgres, its files in `directory`, whose disk is in the figures. Raises `ServerFailed`."""
    directory.chmod(0o711)  # its user has to get there
    with postgres_server.PostgresServer(directory, config=DURABLE) as program:
        if not program.data.is_relative_to(directory):
            raise ServerFailed(f"the user postgres may not pass the directories above {directory}")
        yield PostgresServer(program, program.url())


@contextmanager
def both(plan: Plan) -> Iterator[dict[str, Server]]:
    """Yield, by name, a Redis and a Postgres."""
    with plan.scratch() as one, plan.scratch() as two, redis(one) as quick, postgres(two) as durable:
        yield {"Redis": quick, "Postgres": durable}


def versions() -> dict[str, str]:
    """Return the versions of the installed servers."""
    found: dict[str, str] = {}
    for name, program in {"redis": "redis-server", "beanstalkd": "beanstalkd", "postgres": "postgres"}.items():
        with suppress(ServerFailed):
            found[name] = _version(find_program(program))
    return found


def _version(program: str) -> str:
    word = "-v" if program.endswith("beanstalkd") else "--version"
    said = subprocess.run([program, word], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+\.[\d.]+", said)
    return found[0] if found else "?"
