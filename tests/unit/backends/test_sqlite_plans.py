"""With 100,000 messages in the file, no statement reads more than its share of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.jobs import QUEUE, a_job, numbered

from jobpool.backend import MessageFilter, State, Verb
from jobpool.clock import ManualClock
from jobpool.settlement import Abandon, Ack, Nack, Release
from jobpool_backends.shared import micros
from jobpool_backends.sqlite import SqliteBackend

EACH = 25_000
OPCODES = 100
"""SQLite's progress handler is called each so many instructions."""

_FILL = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :each)
INSERT INTO messages (id, given, queue, handler, priority, state, enqueued_at, available_at,
                      holder, boot, deadline, deadline_wall, ttl, died_at, reason)
SELECT printf('%d-%d', :state, i), 0, :queue, 'report', i % 3, :state, :now, :now + 1000000000,
       CASE :state WHEN 2 THEN 'h' END, CASE :state WHEN 2 THEN 1 END, CASE :state WHEN 2 THEN :boot + 1000000000 END,
       CASE :state WHEN 2 THEN :now + 1000000000 END, CASE :state WHEN 2 THEN 1000000000 END,
       CASE :state WHEN 3 THEN :now END, CASE :state WHEN 3 THEN 'timeout' END
FROM n
"""


def fill(path: Path, clock: ManualClock, each: int) -> None:
    """So many messages in each of the four states."""
    connection = sqlite3.connect(path)
    with connection:
        for state in range(4):
            connection.execute(
                _FILL,
                {
                    "each": each,
                    "state": state,
                    "queue": QUEUE,
                    "now": micros(clock.wall()),
                    "boot": micros(clock.boot()),
                },
            )
        connection.execute("INSERT INTO bodies SELECT seq, x'7b7d' FROM messages")
        connection.execute("INSERT INTO queues VALUES (?, ?, ?, ?, ?)", (QUEUE, each, each, each, each))
    connection.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def full(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteBackend]:
    with prepared(tmp_path / "full.db", clock, EACH) as backend:
        yield backend


@contextmanager
def prepared(path: Path, clock: ManualClock, each: int) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(str(path), clock=clock, boot=1)
    fill(path, clock, each)
    yield backend
    backend.close()


def everything(backend: SqliteBackend, clock: ManualClock) -> None:
    """Every call that a pool, a producer or an administrator makes."""
    settle_each_way(backend)
    reap_some(backend, clock)
    backend.stats(QUEUE)
    backend.queues()
    backend.wait_any(["nothing"], 0.0)
    look_at_pages(backend)
    backend.inspect("0-1")
    backend.bulk(MessageFilter(queue=QUEUE, states=(State.DEAD,)), Verb.RETRY, limit=5)
    backend.bulk(MessageFilter(ids=("0-1", "0-2")), Verb.DELETE, limit=5)
    backend.count(MessageFilter(queue=QUEUE), cap=100)


def settle_each_way(backend: SqliteBackend) -> None:
    backend.enqueue_many([*numbered(5), a_job(identifier="given")])
    leases = backend.fetch_many(QUEUE, limit=10)
    backend.renew_many(leases, 30.0)
    verbs = [Ack(), Nack(), Abandon("x"), Release(), Nack(5.0), Ack((a_job(),)), Ack(), Ack(), Ack(), Ack()]
    assert all(backend.settle_many(list(zip(leases, verbs, strict=True))))


def reap_some(backend: SqliteBackend, clock: ManualClock) -> None:
    backend.fetch_many(QUEUE, limit=5, ttl=1.0)
    clock.advance(1.0)
    assert len(backend.reap(QUEUE)) == 5


def look_at_pages(backend: SqliteBackend) -> None:
    for states in ((), (State.WAITING,), (State.DELAYED,), (State.LEASED,), (State.DEAD,), (State.WAITING, State.DEAD)):
        for queue in (QUEUE, None):
            page = backend.list_messages(MessageFilter(queue=queue, states=states), limit=20)
            backend.list_messages(MessageFilter(queue=queue, states=states), after=page[-1].cursor, limit=20)


def test_no_statement_scans_the_messages(full: SqliteBackend, clock: ManualClock, path: Path) -> None:
    del path
    statements: set[str] = set()
    [connection] = full._database._idle
    connection.set_trace_callback(statements.add)
    everything(full, clock)
    connection.set_trace_callback(None)
    plans = {
        sql: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
        for sql in statements
        if sql.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "INSERT"))
    }
    assert len(plans) > 20
    assert not {sql: plan for sql, plan in plans.items() if "SCAN messages" in "\n".join(plan)}
    assert not {sql: plan for sql, plan in plans.items() if "TEMP B-TREE" in "\n".join(plan) and not sorts_few(sql)}


def sorts_few(sql: str) -> bool:
    """Whether the statement may sort: messages named one by one, or those that fell due and were not fetched since."""
    return "json_each" in sql or "INDEXED BY messages_due" in sql


COSTS: dict[str, Callable[[SqliteBackend, ManualClock], object]] = {
    "enqueue, fetch, settle": lambda backend, _: settle_each_way(backend),
    "reap": reap_some,
    "reap that finds nothing": lambda backend, _: backend.reap(QUEUE),
    "stats": lambda backend, _: backend.stats(QUEUE),
    "pages": lambda backend, _: look_at_pages(backend),
    "wait": lambda backend, _: backend.wait_any([QUEUE], 0.0),
    "inspect": lambda backend, _: backend.inspect("0-7"),
    "count up to a cap": lambda backend, _: backend.count(MessageFilter(queue=QUEUE), cap=20),
}


@pytest.mark.parametrize("name", COSTS)
def test_the_cost_does_not_grow_with_the_messages(tmp_path: Path, name: str) -> None:
    costs = []
    for each in (50, EACH):
        clock = ManualClock()
        with prepared(tmp_path / f"{each}.db", clock, each) as backend:
            COSTS[name](backend, clock)  # the first time prepares statements
            costs.append(instructions(backend, lambda backend=backend, clock=clock: COSTS[name](backend, clock)))
    few, many = costs
    assert many <= few * 1.5 + 5 * OPCODES


def instructions(backend: SqliteBackend, work: Callable[[], object]) -> int:
    """How many instructions SQLite's machine runs for this, to the nearest hundred: a cost that no load disturbs."""
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return 0

    [connection] = backend._database._idle
    connection.set_progress_handler(count, OPCODES)
    work()
    connection.set_progress_handler(None, OPCODES)
    return calls * OPCODES
