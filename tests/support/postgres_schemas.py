"""Schemas on the shared Postgres that tests use one after the other: to make one takes longer than most tests do."""

from __future__ import annotations

import atexit
from collections import defaultdict
from contextlib import closing, suppress
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.connection import Connection
from support.servers import PostgresServer, fresh_name, shared_postgres
from support.waiting import wait_until

CONNECTS: dict[str, Any] = {"connect_timeout": 30}
"""Seconds: the default of 2 is as long as a pause of the machine."""

_END_OF_TEST_S = 10.0
"""Until the sessions of a test have left a schema; else it is not used again."""

MAX_WARM = 4
"""Connections to one address that are kept for later tests."""

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'migrations'"
_SEQUENCES = "SELECT sequencename FROM pg_sequences WHERE schemaname = %s"
_FUNCTIONS = (
    "SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = %s::regnamespace"
)

_CATALOGUE = """
SELECT CASE relkind WHEN 'r' THEN 'TABLE' ELSE 'RELATION' END, oid::regclass::text, xmin::text
FROM pg_class WHERE relnamespace = %(schema)s::regnamespace
UNION ALL SELECT 'FUNCTION', oid::regprocedure::text, xmin::text
FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace
UNION ALL SELECT 'TRIGGER', t.tgname || ' of ' || t.tgrelid::regclass, t.xmin::text
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = %(schema)s::regnamespace
UNION ALL SELECT 'SCHEMA', nspname, xmin::text FROM pg_namespace WHERE oid = %(schema)s::regnamespace
UNION ALL SELECT 'VERSION', version::text, xmin::text FROM {schema}.migrations
UNION ALL SELECT 'SIZE', 'too large', '' WHERE 16000000 <
    (SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = %(schema)s::regnamespace)
"""
"""What a schema consists of, with the transactions that made it so."""

_AT_WORK = """
SELECT FROM pg_stat_activity
WHERE strpos(query, %s) > 0 AND pid <> pg_backend_pid() AND (state <> 'idle' OR query LIKE 'LISTEN%%')
"""


class Superuser:
    """A connection of the superuser's in autocommit, made when it is first needed, and anew when it was ended."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._connection: psycopg.Connection[TupleRow] | None = None

    def ask(self, sql: str, parameters: Any = None) -> list[TupleRow]:
        """Return the rows that these statements give."""
        query: Any = sql  # psycopg wants literals; all that is put together here is ours
        try:
            cursor = self._connected().execute(query, parameters)
        except psycopg.OperationalError:
            if not self._connected().closed:
                raise
            self.close()  # a test has ended this session, or the server
            cursor = self._connected().execute(query, parameters)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def _connected(self) -> psycopg.Connection[TupleRow]:
        if not self._connection:
            self._connection = psycopg.connect(self._server.url(), autocommit=True, prepare_threshold=None)
        return self._connection


class EmptiedSchema:
    """A schema of our backend that is emptied for each test.

    Attributes:
        name: Of the schema.
        superuser: A connection for what tests ask themselves.
    """

    def __init__(self) -> None:
        self.name = fresh_name("emptied")
        self.superuser = Superuser(shared_postgres())
        self._lent: list[PostgresBackend] = []
        self._warm: defaultdict[str, list[Connection]] = defaultdict(list)
        atexit.register(self.close)
        address = shared_postgres().url()
        with closing(PostgresBackend.from_url(address, schema=self.name, **CONNECTS)) as backend:
            backend.prepare()
            self._home = backend._database.home
        names = [name for (name,) in self.superuser.ask(_SEQUENCES, [self.name])]
        restarts = [f"SELECT setval('{{schema}}.{name}', 1, false)" for name in names]
        deletes = [f"DELETE FROM {{schema}}.{name}" for (name,) in self.superuser.ask(_TABLES, [self.name])]
        self._empty = "; ".join([*deletes, *restarts])
        self._functions: dict[str, str] = dict(self.superuser.ask(_FUNCTIONS, [self.name]))
        self._catalogue = self._look()

    def do(self, statements: str, parameters: Any = None) -> list[TupleRow]:
        """Return the rows that the superuser is given. `{schema}` stands for the schema's quoted name."""
        return self.superuser.ask(statements.replace("{schema}", f'"{self.name}"'), parameters)

    def clear(self) -> None:
        """Remove every row, whatever it is about; numbers begin anew."""
        self.do(self._empty)

    def mend(self) -> bool:
        """Drop what a test has added and put back the functions that it replaced; False if more than that is new."""
        if not self._left():
            return False
        found = self._look()
        for kind, name in found.keys() - self._catalogue.keys():
            if kind in ("TABLE", "FUNCTION"):
                self.do(f"DROP {kind} IF EXISTS {name} CASCADE")
        replaced = {(kind, name) for kind, name in found if kind == "FUNCTION" and name in self._functions}
        replaced = {key for key in replaced if found[key] != self._catalogue[key]}
        for _, name in replaced:
            self.do(self._functions[name])
        if found != self._catalogue:
            found = self._look()
            self._catalogue.update({key: found.get(key, "") for key in replaced})
        return found == self._catalogue

    def lend_connection(self, backend: PostgresBackend) -> PostgresBackend:
        """Give a new backend a connection that one with its address had in an earlier test; return the backend.

        A session plans each function when it first calls it, which takes far longer than most calls.
        """
        self._lent.append(backend)
        warm = self._warm[repr(backend._database.address)]
        while warm:
            connection = warm.pop()
            with suppress(psycopg.Error):  # the test has ended it
                connection.execute("SELECT 1", prepare=False)
                backend._database.give_back(connection)
                backend._database._current = True
                backend._database.home = self._home
                break
            connection.close()
        return backend

    def take_connections(self) -> None:
        """Take the idle connections of the backends that were lent some, which are about to be closed."""
        for backend in self._lent:
            warm = self._warm[repr(backend._database.address)]
            while len(warm) < MAX_WARM and (connection := backend._database.take()):
                warm.append(connection)
        self._lent.clear()

    def drop(self) -> None:
        self.do("DROP SCHEMA {schema} CASCADE")
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connections in self._warm.values():
            while connections:
                connections.pop().close()
        self.superuser.close()

    def _look(self) -> dict[tuple[str, str], str]:
        return {(kind, name): version for kind, name, version in self.do(_CATALOGUE, {"schema": f'"{self.name}"'})}

    def _left(self) -> bool:
        """Wait until no session of the test is at work, or listens, in this schema."""
        try:
            wait_until(lambda: not self.superuser.ask(_AT_WORK, [self.name]), _END_OF_TEST_S)
        except AssertionError:
            return False
        return True


_free: list[EmptiedSchema] = []


def take_schema() -> EmptiedSchema:
    """Return an empty schema that nobody else in this process uses until it is given back."""
    schema = _free.pop() if _free else EmptiedSchema()
    schema.clear()
    return schema


def give_back(schema: EmptiedSchema) -> None:
    """Keep a schema for the next test, or drop it if it is not what it was."""
    if schema.mend():
        _free.append(schema)
    else:
        schema.drop()
