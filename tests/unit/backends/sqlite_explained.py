"""What SQLite does for a call: its statements, their plans, how many instructions they take, and what rows are left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from jobpool_backends.sqlite import SqliteBackend

OPCODES = 100
"""SQLite's progress handler is called each so many instructions."""

_KINDS = ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")


def traced(backend: SqliteBackend, work: Callable[[], object]) -> set[str]:
    """The statements that this executes."""
    statements: set[str] = set()
    connection = backend._database._idle[-1]  # the next to be used
    connection.set_trace_callback(statements.add)
    work()
    connection.set_trace_callback(None)
    return statements


@contextmanager
def tracing(backend: SqliteBackend) -> Iterator[list[str]]:
    """The statements that this thread executes meanwhile, in order, each on one line."""
    statements: list[str] = []
    connection = backend._database._idle[-1]  # the next to be used
    connection.set_trace_callback(lambda sql: statements.append(" ".join(sql.split())))
    yield statements
    connection.set_trace_callback(None)


def explained(backend: SqliteBackend, statements: Iterable[str]) -> dict[str, str]:
    """The plans of those that have one."""
    connection = backend._database._idle[-1]  # the next to be used
    return {
        sql: "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}"))
        for sql in statements
        if sql.lstrip().startswith(_KINDS)
    }


def instructions(backend: SqliteBackend, work: Callable[[], object]) -> int:
    """How many instructions SQLite's machine runs for this, to the nearest hundred: a cost that no load disturbs."""
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return 0

    connection = backend._database._idle[-1]  # the next to be used
    connection.set_progress_handler(count, OPCODES)
    work()
    connection.set_progress_handler(None, OPCODES)
    return calls * OPCODES


def rows(backend: SqliteBackend, table: str) -> int:
    """How many are in the table."""
    with backend._database.read() as connection:
        count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count
