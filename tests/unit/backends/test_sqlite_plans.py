"""With 40,000 messages in the file, and as many keys, no statement reads more than its share of them."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest
from sqlite_explained import OPCODES, explained, instructions, traced
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.clock import ManualClock
from jobpool.message.guards import Begin, Guards, Hold, Rate
from jobpool.message.settlement import Abandon, Ack, Move, Nack, Release
from jobpool_backends.shared import DeadCaps, micros
from jobpool_backends.sqlite import SqliteBackend

FEW = 50
EACH = 10_000

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

_FILL_KEYS = (
    "INSERT INTO spent SELECT :queue, printf('key-%d', seq), id, :now + seq * 1000000 FROM messages",
    "INSERT INTO done SELECT queue, key, until FROM spent",
    "INSERT INTO holds SELECT seq, printf('key:other-%d', seq), queue, holder FROM messages WHERE state = 2",
    "INSERT INTO starts SELECT 'mails', printf('concurrency:%d', seq % 1000), id, :now - seq * 1000000,"
    " :now + seq * 1000000 FROM messages",
    "INSERT INTO records (space, key, until, value) SELECT 'pools', key, until, x'7b7d' FROM spent",
    "INSERT INTO logs (space, name, place, line)"
    " SELECT 'history', printf('job-%d', seq / 1000), seq % 1000 + 1, x'7b7d' FROM messages",
    "UPDATE messages SET unique_key = printf('live-%d', seq) WHERE state <> 2",
)


def fill(path: Path, clock: ManualClock, each: int) -> None:
    """So many messages in each of the four states, and as many of all that the key store keeps."""
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
        connection.execute(
            "INSERT INTO queues (name, waiting, delayed, leased, dead) VALUES (?, ?, ?, ?, ?)",
            (QUEUE, each, each, each, each),
        )
        for statement in _FILL_KEYS:
            connection.execute(statement, {"queue": QUEUE, "now": micros(clock.wall())})
    connection.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A file with few messages and one with many, by how many of each: to be copied."""
    folder = tmp_path_factory.mktemp("filled")
    paths = {each: folder / f"{each}.db" for each in (FEW, EACH)}
    for each, path in paths.items():
        SqliteBackend(str(path)).close()
        fill(path, ManualClock(), each)
    return paths


@contextmanager
def opened(source: Path, path: Path, clock: ManualClock) -> Iterator[SqliteBackend]:
    """A backend on a copy."""
    shutil.copy(source, path)
    backend = SqliteBackend(str(path), clock=clock, boot=1)
    yield backend
    backend.close()


@pytest.fixture
def full(filled: dict[int, Path], tmp_path: Path, clock: ManualClock) -> Iterator[SqliteBackend]:
    with opened(filled[EACH], tmp_path / "full.db", clock) as backend:
        yield backend


def everything(backend: SqliteBackend, clock: ManualClock) -> None:
    """Every call that a pool, a producer or an administrator makes."""
    settle_each_way(backend)
    guard_some(backend)
    note_some(backend)
    reap_some(backend, clock)
    guard_some(backend)  # a second later, so that it sweeps
    backend.keys.list_logs("history")
    backend.evicted(QUEUE)
    backend.stats(QUEUE)
    backend.queues()
    backend.wait_any(["nothing"], 0.0)
    look_at_pages(backend)
    backend.inspect("0-1")
    backend.bulk(MessageFilter(queue=QUEUE, states=(State.DEAD,)), Verb.RETRY, limit=5)
    backend.bulk(MessageFilter(queue=QUEUE, states=(State.DEAD,)), Verb.RESUME, limit=5)
    backend.bulk(MessageFilter(ids=("0-1", "0-2")), Verb.DELETE, limit=5)
    backend.count(MessageFilter(queue=QUEUE), cap=100)


def settle_each_way(backend: SqliteBackend) -> None:
    backend.enqueue_many([*numbered(5), a_job(identifier="given")])
    leases = backend.fetch_many(QUEUE, limit=10)
    backend.renew_many(leases, 30.0)
    verbs = [Ack(), Nack(), Abandon("x"), Release(), Nack(5.0), Ack((a_job(),)), Ack(), Ack(), Ack(), Ack()]
    assert all(backend.settle_many(list(zip(leases, verbs, strict=True))))


TURNS = count(1)


def guard_some(backend: SqliteBackend) -> None:
    """Everything about keys, in a queue of its own: the messages of the other have no envelope to move."""
    turn = next(TURNS)
    unique = [a_job(queue="mails", unique=True, idempotency_key=f"new-{turn}-{number}") for number in range(4)]
    backend.enqueue_many([*unique, a_job(unique=True, idempotency_key="live-1"), a_job(queue="mails")])
    leases = backend.fetch_many("mails", limit=5)
    rates = (Rate(f"concurrency:{turn}", 4), Rate("queue", 999))  # of which one is used already
    asked = [(lease, Guards(f"key-{lease.id}", 50.0, (Hold("queue", 99),), rates)) for lease in leases]
    answers = backend.keys.begin_many(asked)
    assert [answer.answer for answer in answers] == [Begin.GRANTED] * 3 + [Begin.LIMITED] * 2
    backend.keys.holders("mails", "queue")
    verbs = [Ack(), Release(begun=False), Move("others"), Nack(), Ack()]
    settlements = [(lease.guarded(guards), verb) for (lease, guards), verb in zip(asked, verbs, strict=True)]
    assert all(backend.settle_many(settlements))
    backend.bulk(MessageFilter(queue="mails"), Verb.DELETE)
    backend.bulk(MessageFilter(queue="others"), Verb.DELETE)
    backend.keys.first_run(QUEUE, "key-1")
    backend.keys.forget("mails", "key-1")
    for number in range(3):
        backend.keys.take("mails", Rate(f"own-{turn}", 2), f"token-{number}")


def note_some(backend: SqliteBackend) -> None:
    backend.keys.put_records("pools", {"key-1": b"x", "pool-1": b"y"}, 50.0)
    assert backend.keys.get_record("pools", "pool-1") == b"y"
    assert len(backend.keys.list_records("pools", prefix="key-", after="key-10", limit=20)) == 20
    assert len(backend.keys.list_records("pools", prefix="key-", limit=20)) == 20
    backend.keys.delete_records("pools", ["pool-1", "nothing"])
    backend.keys.append_log("history", [("job-0", b"x"), ("another", b"y")], keep=50)
    assert len(backend.keys.read_log("history", "job-0", limit=20)) == 20


def reap_some(backend: SqliteBackend, clock: ManualClock) -> None:
    backend.fetch_many(QUEUE, limit=5, ttl=1.0)
    clock.advance(1.0)
    assert len(backend.reap(QUEUE)) == 5


def look_at_pages(backend: SqliteBackend) -> None:
    for states in ((), (State.WAITING,), (State.DELAYED,), (State.LEASED,), (State.DEAD,), (State.WAITING, State.DEAD)):
        for queue in (QUEUE, None):
            page = backend.list_messages(MessageFilter(queue=queue, states=states), limit=20)
            backend.list_messages(MessageFilter(queue=queue, states=states), after=page[-1].cursor, limit=20)


def test_no_statement_scans_the_messages(full: SqliteBackend, clock: ManualClock, tmp_path: Path) -> None:
    statements = traced(full, lambda: everything(full, clock))
    with closing(
        SqliteBackend(str(tmp_path / "full.db"), clock=clock, boot=1, caps=DeadCaps(EACH // 2, 10**9))
    ) as capped:
        statements |= traced(capped, lambda: reap_some(capped, clock))
        assert capped.evicted(QUEUE) > 0
    plans = explained(full, statements)
    assert len(plans) > 50
    assert not {sql: plan for sql, plan in plans.items() if SCANNED.search(plan) and not looks_at_a_page(sql)}
    assert not {sql: plan for sql, plan in plans.items() if "TEMP B-TREE" in plan and not sorts_few(sql)}


SCANNED = re.compile(r"SCAN (messages|bodies|spent|done|holds|starts|records|logs)")


def looks_at_a_page(sql: str) -> bool:
    """Whether the statement walks along a table, but over the rows of one page."""
    return "AS page" in sql


def sorts_few(sql: str) -> bool:
    """Whether the statement may sort: messages named one by one, or those that fell due and were not fetched since."""
    return "json_each" in sql or "INDEXED BY messages_due" in sql or "INDEXED BY messages_posts_due" in sql


COSTS: dict[str, Callable[[SqliteBackend, ManualClock], object]] = {
    "enqueue, fetch, settle": lambda backend, _: settle_each_way(backend),
    "keys, places and rates": lambda backend, _: guard_some(backend),
    "records and logs": lambda backend, _: note_some(backend),
    "reap": reap_some,
    "reap that finds nothing": lambda backend, _: backend.reap(QUEUE),
    "stats": lambda backend, _: backend.stats(QUEUE),
    "pages": lambda backend, _: look_at_pages(backend),
    "wait": lambda backend, _: backend.wait_any([QUEUE], 0.0),
    "inspect": lambda backend, _: backend.inspect("0-7"),
    "count up to a cap": lambda backend, _: backend.count(MessageFilter(queue=QUEUE), cap=20),
}


@pytest.mark.parametrize("name", COSTS)
def test_the_cost_does_not_grow_with_the_messages(filled: dict[int, Path], tmp_path: Path, name: str) -> None:
    costs = []
    for source in filled.values():
        clock = ManualClock()
        with opened(source, tmp_path / source.name, clock) as backend:
            COSTS[name](backend, clock)  # the first time prepares statements
            costs.append(instructions(backend, lambda backend=backend, clock=clock: COSTS[name](backend, clock)))
    few, many = costs
    assert many <= few * 1.5 + 5 * OPCODES
