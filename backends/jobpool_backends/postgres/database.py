"""Connections to one database, and recovery when they break.

Each call has a connection of its own, in autocommit: one statement is one transaction. If a connection broke while it
was idle (the server was restarted), a call goes on with a new one, once and at once. Most calls may be repeated safely.
One that may not is sent on a connection that was seen to be open, and raises what breaks it then.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from jobpool.errors import OUTAGES
from jobpool_backends.postgres.connection import Address, Connection, connect
from jobpool_backends.postgres.errors import (
    HIDDEN_POOLER,
    UNDONE,
    is_conflict,
    is_stale,
    raise_explained,
    raise_unreached,
)
from jobpool_backends.postgres.schema import WRONG_ISOLATION, check_current, fill
from jobpool_backends.shared import IdleConnections

MAX_IDLE_CONNECTIONS = 8  # kept for later calls; a server has few, and each is a process there

# After a serialization failure or a dead-lock: naps, twice as long each time, with full jitter.
_MIN_NAP_S = 0.001
_MAX_NAP_S = 0.1
_MAX_TRIES = 20

SWEEP_INTERVAL_S = 5.0
_SWEEP_BATCH_ROWS = 2000

Parameters = Sequence[Any] | Mapping[str, Any]
Result = TypeVar("Result")


class Database(IdleConnections[Connection]):
    """One database of a server, safe to share between threads. Connects when it is first asked."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"Postgres at {address.where}")
        self.address = address
        self.schema = address.schema
        self.home = ""
        """The value of `in_transaction.HOME` here, from the first connection on."""
        # Connections lead through a pooler: statements are not prepared, sessions not ours, and LISTEN hears nothing.
        self.pooled = False
        self.next_sweep = 0.0
        self._filled: dict[str, str] = {}
        self._current = False
        self._isolated = False
        self._checking = threading.Lock()

    def fill(self, sql: str) -> str:
        """Return a statement with the name of the schema for `{schema}`. Call it with few texts: they are kept."""
        return self._filled.get(sql) or self._filled.setdefault(sql, fill(sql, self.schema))

    def run(
        self, sql: str, parameters: Parameters | None = None, *, prepare: bool | None = None, repeatable: bool = True
    ) -> list[tuple[Any, ...]]:
        """Return the rows that one statement gives: one transaction, one round trip. Results travel in binary.

        Write parameters as `%b` or `%(name)b`: arrays and bytes then travel in binary too, at a fifth of the cost.
        `prepare=False` plans the statement anew for the current tables; else its plan is kept. A statement that is not
        `repeatable` is sent again after a break only if the server has undone it.

        Raises `BackendUnavailable` (nothing is known; safe to call again) or `AccessRefused`. Blocks for `timeout`, and
        as long again as it takes to connect; a little longer when transactions collide.
        """
        filled = self.fill(sql)

        def ask(connection: Connection) -> list[tuple[Any, ...]]:
            cursor = connection.execute(filled, parameters, prepare=prepare, binary=True)
            # `description` would make a value of each column, at a quarter of what a short call costs.
            return cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []

        return self._call(ask, repeatable)

    def call(self, function: str, *values: Any, repeatable: bool = True) -> list[tuple[Any, ...]]:
        """Return the rows of a function of the schema. Raises and blocks as `run`."""
        return self.run(calling(function, len(values)), values, repeatable=repeatable)

    def value(self, function: str, *values: Any, repeatable: bool = True) -> Any:
        """Return the one value of a function of the schema. Raises and blocks as `run`."""
        [(value,)] = self.call(function, *values, repeatable=repeatable)
        return value

    def sweep(self) -> None:
        """Delete a piece of the outdated rows, when five seconds have passed since the last or that one was full.

        Between the calls that add to them, and without a lock: all that a race can do is sweep once too often.
        """
        now = time.monotonic()
        if now < self.next_sweep:
            return
        self.next_sweep = now + SWEEP_INTERVAL_S
        with suppress(*OUTAGES):  # the caller's call was answered; the next meets the error
            if self.value("sweep", _SWEEP_BATCH_ROWS) >= _SWEEP_BATCH_ROWS:
                self.next_sweep = now

    def run_committed(self, sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        """Run as `run`, under READ COMMITTED; with another isolation level in three statements, and two trips.

        For statements that the server refuses under another level, with `schema.WRONG_ISOLATION`.
        """
        if not self._isolated:
            try:
                return self.run(sql, parameters)
            except psycopg.Error as error:
                if error.sqlstate != WRONG_ISOLATION:
                    raise
                self._isolated = True

        def ask(connection: Connection) -> list[tuple[Any, ...]]:
            connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", prepare=False)
            return connection.execute(self.fill(sql), parameters, binary=True).fetchall()

        return self.transaction(ask)

    def transaction(
        self, work: Callable[[Connection], Result], *, pipelined: bool = True, repeatable: bool = True
    ) -> Result:
        """Return the result of `work(connection)` in one transaction: committed when it returns, undone when it raises.

        `work` may be called again. `pipelined`: send statements without waiting for answers that `work` does not look
        at, the first together with BEGIN. COPY is not possible then. Ignored with a pooler. Raises as `run`.
        """

        def step(connection: Connection) -> Result:
            together = connection.pipeline() if pipelined and not connection.pooled else nullcontext()
            with together, connection.transaction():
                return work(connection)

        return self._call(step, repeatable)

    def prepare(self) -> None:
        """Make the schema current, or see that it is; in several processes too. Raises as `run`."""
        self._current = False
        self.connect().close()

    def ensure_current(self) -> None:
        """Prepare the schema, unless a connection of this database has done so: before others' connections are used."""
        if not self._current:
            self.prepare()

    def connect(self) -> Connection:
        """Return a new connection that the caller owns and closes; the schema has been checked. Raises as `run`."""
        self.check_usable()
        try:
            connection = connect(self.address)
        except psycopg.Error as error:
            raise_unreached(error, self.address)
        self.pooled = self.pooled or connection.pooled
        if self.pooled:
            connection.prepare_threshold = None
        try:
            if not self._current:
                with self._checking:
                    self.home = check_current(connection, self.schema)
                self._current = True
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise_explained(error, self.address)
            raise
        return connection

    def _call(self, step: Callable[[Connection], Result], repeatable: bool = True) -> Result:
        """Do one transaction, and again when the server made it give way to another."""
        self.check_usable()
        give_up = time.monotonic() + self.address.timeout
        nap = _MIN_NAP_S
        tries = 1
        while True:
            try:
                return self._once(step, repeatable)
            except psycopg.Error as error:
                if not is_conflict(error) or tries >= _MAX_TRIES or time.monotonic() >= give_up:
                    raise_explained(error, self.address)
            tries += 1
            time.sleep(random.uniform(0.0, nap))
            nap = min(nap * 2, _MAX_NAP_S)

    def _once(self, step: Callable[[Connection], Result], repeatable: bool) -> Result:
        connection = self.take(None if repeatable else Connection.is_closed)
        if connection is not None:
            try:
                return self._use(connection, step)
            except psycopg.Error as error:
                if connection.closed:
                    self.drop_idle()  # the others have most likely broken too
                if not is_stale(error) or not (repeatable or error.sqlstate in UNDONE):
                    raise
                self.pooled = self.pooled or error.sqlstate in HIDDEN_POOLER
        return self._use(self.connect(), step)

    def _use(self, connection: Connection, step: Callable[[Connection], Result]) -> Result:
        try:
            return step(connection)
        except (psycopg.InternalError, psycopg.ProgrammingError, ValueError) as error:
            if not connection.closed or getattr(error, "sqlstate", None):
                raise
            # psycopg expects one answer: a pooler gave two, an error of the lost session's and its own.
            raise psycopg.OperationalError(str(error)) from error
        except psycopg.Error as error:
            if is_stale(error):
                connection.close()
            raise
        finally:
            self.give_back(connection)

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next call, if it is at rest. Close it if it was interrupted or timed out."""
        if connection.pgconn.transaction_status != TransactionStatus.IDLE or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.close()
            return
        super().give_back(connection)


def calling(function: str, count: int) -> str:
    """Return the statement that calls a function of the schema with `count` values."""
    return f"SELECT * FROM {{schema}}.{function}({', '.join(['%b'] * count)})"
