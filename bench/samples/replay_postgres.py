"""psycopg and nothing else, saying what jobpool has said before: the same statements, rows and transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from unittest.mock import patch

import psycopg

from jobpool.broker.opening import open_backend
from jobpool.client.jobs import Jobs

Step = Callable[[psycopg.Connection[Any]], object]
"""Something that was said on a connection."""

SCHEMA = "jobpool"


@contextmanager
def replay(url: str, what: Callable[[Jobs], None], times: int, key: str) -> Iterator[Callable[[], object]]:
    """Yield a function that sends the next step that jobpool took for `what`; the database has forgotten it."""
    calls: list[list[Step]] = []
    with Jobs(url, signing_key=key) as jobs:
        what(jobs)  # connects
        for _ in range(times):
            with _heard() as steps:
                what(jobs)
            calls.append(steps)
    _forget(url)
    rest = iter(calls)
    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda: _say(connection, next(rest))


def _say(connection: psycopg.Connection[Any], steps: Sequence[Step]) -> None:
    for step in steps:
        step(connection)


def _forget(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"drop schema {SCHEMA} cascade")
    with closing(open_backend(url)) as backend:
        backend.prepare()


@contextmanager
def _heard() -> Iterator[list[Step]]:
    """Yield what this process sends through psycopg meanwhile."""
    steps: list[Step] = []
    execute, copy, transaction = psycopg.Cursor.execute, psycopg.Cursor.copy, psycopg.Connection.transaction

    def heard_execute(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
        steps.append(lambda connection: connection.execute(query, params, **options))
        return execute(self, query, params, **options)

    @contextmanager
    def heard_copy(self: Any, statement: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        written: list[tuple[str, Any]] = []
        steps.append(lambda connection: _copy(connection, statement, written))
        with copy(self, statement, params, **options) as real:
            yield _Ear(real, written)

    @contextmanager
    def heard_transaction(self: Any, *args: Any, **options: Any) -> Iterator[Any]:
        within: list[Step] = []
        steps.append(lambda connection: _transaction(connection, within))
        with transaction(self, *args, **options) as real:
            begun = len(steps)
            yield real
            within += steps[begun:]
            del steps[begun:]

    with ExitStack() as stack:
        stack.enter_context(patch.object(psycopg.Cursor, "execute", heard_execute))
        stack.enter_context(patch.object(psycopg.Cursor, "copy", heard_copy))
        stack.enter_context(patch.object(psycopg.Connection, "transaction", heard_transaction))
        yield steps


class _Ear:
    """A COPY that keeps what is written to it."""

    def __init__(self, copy: Any, written: list[tuple[str, Any]]) -> None:
        self._copy = copy
        self._written = written

    def __getattr__(self, name: str) -> Any:
        def call(value: Any) -> Any:
            self._written.append((name, value))
            return getattr(self._copy, name)(value)

        return call


def _copy(connection: psycopg.Connection[Any], statement: Any, written: Sequence[tuple[str, Any]]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for name, value in written:
            getattr(copy, name)(value)


def _transaction(connection: psycopg.Connection[Any], within: Sequence[Step]) -> None:
    with connection.transaction():
        _say(connection, within)
