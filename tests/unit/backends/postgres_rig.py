"""What the tests of the Postgres backend share: a schema that is theirs on a server, and a look behind the scenes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar
from urllib.parse import quote

import psycopg
from psycopg.rows import TupleRow
from support.postgres_schemas import CONNECTS, Superuser, give_back, take_schema
from support.servers import PostgresServer, fresh_name, shared_postgres

from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.connection import read_address
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.wait import channel

T = TypeVar("T")

PATIENCE = 30
"""Seconds that a busy machine may take for a statement."""


class Rig:
    """One schema, and all that opens connections to it; a context manager that closes everything.

    Args:
        server: The one to use; None = that of the test process.
        new: The schema is one that nothing has created yet, as on a `server` that is given. Else it is there, empty,
            and has served other tests.

    Attributes:
        schema: Its name.
    """

    def __init__(self, server: PostgresServer | None = None, *, new: bool = False) -> None:
        self.server = server or shared_postgres()
        self._taken = None if server or new else take_schema()
        self._superuser = self._taken.superuser if self._taken else Superuser(self.server)
        self.schema = self._taken.name if self._taken else fresh_name()
        self._threads = ThreadPoolExecutor(8)
        self._opened: list[PostgresBackend | Database | psycopg.Connection[TupleRow]] = []

    def url(self, options: Mapping[str, object] | None = None, *, base: str | None = None) -> str:
        """Of the schema, with more options in the query; `base`: through another address.

        A test that sets no time of its own may pause as long as it wants while it connects.
        """
        options = options or {}
        patient = {} if "timeout" in options else CONNECTS
        found = {"schema": self.schema, **patient, **options}
        query = "&".join(f"{name}={quote(str(value))}" for name, value in found.items())
        return f"{base or self.server.url()}?{query}"

    def base(self, user: str) -> str:
        """The server's address for another user."""
        return f"postgresql://{user}@{self.server.host}:{self.server.port}/postgres"

    def open(self, base: str | None = None, isolation: str | None = None, **options: object) -> PostgresBackend:
        """A backend; closed at the end. `isolation`: the default level of its sessions."""
        if isolation:
            options["options"] = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
        backend = PostgresBackend.from_url(self.url(options, base=base))
        self._opened.append(backend)
        is_usual = base is None and options.keys() <= {"timeout"}
        return self._taken.lend_connection(backend) if self._taken and is_usual else backend

    def database(self, base: str | None = None, **options: object) -> Database:
        """The connections alone; closed at the end."""
        database = Database(read_address(self.url(options, base=base)))
        self._opened.append(database)
        return database

    def connect(self, **options: Any) -> psycopg.Connection[TupleRow]:
        """A plain connection of the superuser's, as a user of ours or an administrator has one; closed at the end."""
        connection = psycopg.connect(self.server.url(), **options)
        self._opened.append(connection)
        return connection

    def listen(self) -> psycopg.Connection[TupleRow]:
        """A connection that hears what sleepers of the schema are told."""
        ear = self.connect(autocommit=True)
        ear.execute(f'LISTEN "{channel(self.schema)}"')
        return ear

    def ask(self, sql: str, *parameters: object) -> list[TupleRow]:
        """What the superuser is told, in a transaction of its own. `{schema}` stands for the schema's quoted name."""
        return self._superuser.ask(sql.replace("{schema}", f'"{self.schema}"'), parameters or None)

    def submit(self, work: Callable[..., T], *arguments: object, **named: object) -> Future[T]:
        """Have a thread do this; it ends when the backends are closed, at the latest."""
        return self._threads.submit(work, *arguments, **named)

    def within(self, connection: psycopg.Connection[TupleRow], sql: str, *parameters: object) -> list[TupleRow]:
        """What this connection is told, in the transaction that is open on it."""
        return connection.execute(sql.replace("{schema}", f'"{self.schema}"').encode(), parameters).fetchall()

    def rewrite(self, function: str, old: str, new: str) -> None:
        """Replace a text in the definition of one of the schema's functions."""
        [(definition,)] = self.ask("SELECT pg_get_functiondef(%s::regproc)", f'"{self.schema}".{function}')
        assert old in definition
        self.ask(definition.replace(old, new))

    def lower_step(self, step: int) -> None:
        """Let the floor follow at once, so that few messages are enough."""
        self.rewrite("step_floor", "head.floor + 1000", f"head.floor + {step}")

    def waits_for_another(self) -> bool:
        """Whether a session waits for the end of another one's transaction."""
        return bool(self.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"))

    def dead_locks(self) -> int:
        """How many the server has ended in this database, those of sessions that are closed at least."""
        [(count,)] = self.ask("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(count)

    def close(self) -> None:
        if self._taken:
            self._taken.take_connections()
        for opened in self._opened:
            opened.close()
        self._threads.shutdown()
        if self._taken:
            give_back(self._taken)
            self._taken = None
            return
        if self.server.running:
            self.ask("DROP SCHEMA IF EXISTS {schema} CASCADE")
        self._superuser.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def together(count: int, work: Callable[[int], object]) -> None:
    """Do `work(number)` in so many threads at once; raise what one of them raised."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait(10.0)
        work(number)

    with ThreadPoolExecutor(count) as threads:
        for future in [threads.submit(run, number) for number in range(count)]:
            future.result(60.0)
