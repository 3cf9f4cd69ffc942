"""A Redis and a Postgres of one's own: on loopback, on a free port, in a directory that goes away with them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, LiteralString

import psycopg
from psycopg import sql
from redis import Redis
from redis import exceptions as redis_errors

from bench.plan import Plan
from bench.processes import family_seconds

LIMIT = 30.0
LOOK_EVERY = 0.02

IN_MEMORY = ("--appendonly", "no", "--save", "")
"""Redis that keeps nothing on a disk."""

EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
"""Redis that writes a log, and syncs it once a second."""

POSTGRES_PROGRAMS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin")
"""Where Debian and Red Hat put them."""

END = "that is all"
"""Said by who listens to a Redis, to know that everything before has been heard."""

POSTGRES_USER = "postgres"

DURABLE = {"fsync": "on", "synchronous_commit": "on", "max_wal_size": "4GB", "shared_buffers": "256MB"}
"""Every commit waits for its disk. The two sizes keep checkpoints and evictions out of short samples, for all alike."""


class ServerMissing(RuntimeError):
    """A program that a benchmark needs is not installed, or did not start; the text says what to do."""


@dataclass(slots=True)
class Asked:
    """The number of requests to a server: commands or transactions of clients, and commands that its scripts made of
    them.
    """

    commands: int = 0
    within: int = 0


class Server(ABC):
    """One that runs. `pid` is its first process; others may hang below it.

    Attributes:
        namespace: The option of jobpool's URLs that keeps two of them apart in one place.
    """

    namespace: ClassVar[str]

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

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
def redis(directory: Path, options: Sequence[str] = IN_MEMORY, port: int = 0) -> Iterator[Server]:
    """Yield a Redis with these options, its files in `directory`; `port` 0 = a free one."""
    program = shutil.which("redis-server")
    if program is None:
        raise ServerMissing("there is no redis-server: scripts/services up installs it")
    port = port or free_port()
    words = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), *options]
    url = f"redis://127.0.0.1:{port}/0"
    with running(words, directory / "redis.log", signal.SIGTERM, lambda: _redis_answers(url)) as process:
        yield RedisServer(url, process.pid)


@contextmanager
def postgres(directory: Path, settings: Mapping[str, str] | None = None, port: int = 0) -> Iterator[Server]:
    """Yield a Postgres with these settings beside `DURABLE`, its files in `directory`: old ones, or new ones."""
    programs = _postgres_programs()
    port = port or free_port()
    data = directory / "postgres"
    if not data.exists():
        _make_cluster(programs, data)
    words = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(data)]
    for name, value in {"listen_addresses": "127.0.0.1", **DURABLE, **(settings or {})}.items():
        words += ["-c", f"{name}={value}"]
    url = f"postgresql://{POSTGRES_USER}@127.0.0.1:{port}/postgres"
    log = directory / "postgres.log"
    with running(words, log, signal.SIGINT, lambda: _postgres_answers(url), **_identity()) as process:
        yield PostgresServer(url, process.pid)


@contextmanager
def both(plan: Plan) -> Iterator[dict[str, Server]]:
    """Yield, by name, a Redis and a Postgres."""
    with plan.scratch() as one, plan.scratch() as two, redis(one) as quick, postgres(two) as durable:
        yield {"Redis": quick, "Postgres": durable}


def versions() -> dict[str, str]:
    """Return the versions of the installed servers."""
    programs: dict[str, str | Path | None] = {
        "redis": shutil.which("redis-server"),
        "beanstalkd": shutil.which("beanstalkd"),
    }
    with contextlib.suppress(ServerMissing):
        programs["postgres"] = _postgres_programs() / "postgres"
    return {name: _version(program) for name, program in programs.items() if program}


def _version(program: str | Path) -> str:
    word = "-v" if str(program).endswith("beanstalkd") else "--version"
    said = subprocess.run([program, word], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+\.[\d.]+", said)
    return found[0] if found else "?"


def free_port() -> int:
    """Return one of loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    words: Sequence[str], log: Path, stop: signal.Signals, answers: Callable[[], bool], **identity: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the program, from when it answers until it has stopped."""
    words = ["setpriv", "--pdeathsig", "KILL", *words]  # it does not outlive this process, however that ends
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out, cwd="/", **identity) as process:
        try:
            _wait(process, answers, log)
            yield process
        finally:
            process.send_signal(stop)
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    give_up = time.monotonic() + LIMIT
    while not answers():
        if process.poll() is not None or time.monotonic() > give_up:
            raise ServerMissing(f"{process.args!r} does not answer: {log.read_text()[-2000:]}")
        time.sleep(LOOK_EVERY)


def _redis_answers(url: str) -> bool:
    with Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis_errors.ConnectionError:
            return False


def _postgres_answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _postgres_programs() -> Path:
    """Return the directory of the newest version's programs: Debian keeps them out of PATH."""
    found = [place for pattern in POSTGRES_PROGRAMS for place in Path("/").glob(pattern) if (place / "initdb").exists()]
    if found:
        return max(found, key=lambda place: [int(part) for part in re.findall(r"\d+", str(place))])
    in_path = shutil.which("postgres")
    if in_path is None:
        raise ServerMissing("there is no PostgreSQL server: scripts/services up installs it")
    return Path(in_path).parent


def _make_cluster(programs: Path, data: Path) -> None:
    data.mkdir(mode=0o700)
    identity = _identity()
    if identity:
        shutil.chown(data, POSTGRES_USER)
        data.parent.chmod(0o711)  # it has to get there
    words = [str(programs / "initdb"), "-D", str(data), "-U", POSTGRES_USER, "--auth=trust", "--no-sync", "-E", "UTF8"]
    made = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False, **identity)
    if made.returncode:
        raise ServerMissing(f"initdb has failed: {made.stderr[-2000:]}")


def _identity() -> dict[str, Any]:
    """Return the user to run the server as: it refuses to be root."""
    return {"user": POSTGRES_USER, "group": POSTGRES_USER, "extra_groups": []} if os.geteuid() == 0 else {}
