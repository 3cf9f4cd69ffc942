"""Harness of the Postgres backend: a schema whose clock is a row of a table, and schemas that run as ever."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg

from jobpool.broker.backend import QueueBackend
from jobpool.clock import ManualClock
from jobpool_backends.postgres import PostgresBackend
from support.harnesses.base import Opener, TurnedClock
from support.postgres_schemas import CONNECTS, EmptiedSchema, give_back, take_schema
from support.servers import shared_postgres

PATIENT: dict[str, Any] = {"timeout": 30.0, **CONNECTS}
"""Seconds that a live client waits for a statement, too: a crowd keeps all cores busy."""

TURNED = """
    CREATE TABLE {schema}.turned (moment bigint NOT NULL);
    INSERT INTO {schema}.turned VALUES (0);
    CREATE OR REPLACE FUNCTION {schema}.moment() RETURNS bigint LANGUAGE sql VOLATILE
        RETURN (SELECT moment FROM {schema}.turned)
"""


class PostgresHarness(TurnedClock):
    """The schema's function `moment` tells the backend's time; here one that reads a table has taken its place."""

    capabilities = PostgresBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._schema = _turned_schema()
        self._schema.clear()
        self._schema.turn_to(self.clock.wall())
        self._live: list[EmptiedSchema] = []

    def connect(self, **options: Any) -> QueueBackend:
        backend = _open(self._schema.name, self.clock, **options)
        return backend if options else self._schema.lend_connection(backend)

    def own_connection(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        return psycopg.connect(shared_postgres().url(), autocommit=autocommit)

    def opener(self) -> Opener:
        self._live.append(take_schema())
        return partial(PostgresBackend.from_url, shared_postgres().url(), schema=self._live[-1].name, **PATIENT)

    def close(self) -> None:
        self._schema.take_connections()
        super().close()
        while self._live:
            give_back(self._live.pop())

    def show(self, wall: float) -> None:
        self._schema.turn_to(wall)


class _TurnedSchema(EmptiedSchema):
    """A schema with that clock."""

    def __init__(self) -> None:
        super().__init__()
        self.do(TURNED)

    def turn_to(self, moment: float) -> None:
        """Have the schema's clock show this Unix time, in seconds."""
        self.do("UPDATE {schema}.turned SET moment = %s", [round(moment * 1e6)])


@cache
def _turned_schema() -> _TurnedSchema:
    return _TurnedSchema()


def _open(schema: str, clock: ManualClock, **options: Any) -> PostgresBackend:
    return PostgresBackend.from_url(shared_postgres().url(), clock=clock, schema=schema, **{**CONNECTS, **options})
