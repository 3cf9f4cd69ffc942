"""Harness of the Postgres backend: a schema whose clock is a row of a table, and schemas that run as ever."""

from __future__ import annotations

import atexit
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from jobpool.broker.backend import QueueBackend
from jobpool.clock import ManualClock
from jobpool_backends.postgres import PostgresBackend
from support.harnesses.base import Opener, TurnedClock
from support.servers import fresh_name, shared_postgres

CONNECTS = {"connect_timeout": 30}
"""Seconds: the default of 2 is as long as a pause of the machine."""

PATIENT = {"timeout": 30.0, **CONNECTS}
"""Seconds that a live client waits for a statement, too: a crowd keeps all cores busy."""

TURNED = """
    CREATE TABLE {schema}.turned (moment bigint NOT NULL);
    INSERT INTO {schema}.turned VALUES (0);
    CREATE OR REPLACE FUNCTION {schema}.moment() RETURNS bigint LANGUAGE sql VOLATILE
        RETURN (SELECT moment FROM {schema}.turned)
"""
_KEPT = ("migrations", "turned")


class PostgresHarness(TurnedClock):
    """The schema's function `moment` tells the backend's time; here one that reads a table has taken its place."""

    capabilities = PostgresBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._schema = _turned_schema()
        self._schema.clear()
        self._schema.turn_to(self.clock.wall())

    def connect(self, **options: Any) -> QueueBackend:
        return _open(self._schema.name, self.clock, **options)

    def opener(self) -> Opener:
        return partial(PostgresBackend.from_url, shared_postgres().url(), schema=fresh_name(), **PATIENT)

    def show(self, wall: float) -> None:
        self._schema.turn_to(wall)


class _TurnedSchema:
    """A schema that is emptied for each test: to make one takes much longer than most of the tests."""

    def __init__(self) -> None:
        self.name = fresh_name("turned")
        with closing(_open(self.name, ManualClock())) as backend:
            backend.prepare()
        self._connection = self._connect()
        atexit.register(lambda: self._connection.close())
        self._do(TURNED)
        self._empty = "; ".join(f"DELETE FROM {{schema}}.{table}" for table in self._tables() if table not in _KEPT)

    def clear(self) -> None:
        """Remove every row, whatever it is about."""
        self._do(self._empty)

    def turn_to(self, moment: float) -> None:
        """Have the schema's clock show this Unix time, in seconds."""
        self._do("UPDATE {schema}.turned SET moment = {moment}", moment=sql.Literal(round(moment * 1e6)))

    def _tables(self) -> list[str]:
        rows = self._connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [self.name])
        return [name for (name,) in rows]

    def _do(self, statements: str, **values: sql.Composable) -> None:
        text: Any = statements  # psycopg wants literals; all that is put together here is ours
        query = sql.SQL(text).format(schema=sql.Identifier(self.name), **values)
        try:
            self._connection.execute(query)
        except psycopg.OperationalError:  # another test has ended all connections of this server
            self._connection = self._connect()
            self._connection.execute(query)

    @staticmethod
    def _connect() -> psycopg.Connection[Any]:
        return psycopg.connect(shared_postgres().url(), autocommit=True)


@cache
def _turned_schema() -> _TurnedSchema:
    return _TurnedSchema()


def _open(schema: str, clock: ManualClock, **options: Any) -> PostgresBackend:
    return PostgresBackend.from_url(shared_postgres().url(), clock=clock, schema=schema, **{**CONNECTS, **options})
