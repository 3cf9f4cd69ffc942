"""With 40,000 messages in the file, as many keys, and 10,000 claims, no statement reads more than its share of them."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from sqlite_explained import OPCODES, explained, instructions, traced
from support.claims import a_post, claim, ids, post
from support.jobs import QUEUE, a_job, at, numbered

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.clock import ManualClock
from jobpool.message.guards import Begin, Guards, Hold, Rate
from jobpool.message.settlement import Abandon, Ack, Move, Nack, Release, Settlement
from jobpool_backends.shared import DeadCaps, micros
from jobpool_backends.sqlite import SqliteBackend

FEW, MANY = 50, 5000
DAYS = 10**12
"""Microseconds."""

# Of later priorities than what the work adds. The posted ones and the claims have no handler.
_FILL = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :each)
INSERT INTO messages (id, given, queue, handler, priority, state, enqueued_at, available_at,
                      holder, claim, boot, deadline, deadline_wall, ttl, died_at, reason, ends_at)
SELECT printf('%s-%d-%d', :handler, :state, i), 0, :queue, :handler, 9 + i % 3, :state, :now, :now + :days,
       CASE :state WHEN 2 THEN printf('c%031x', i) END,
       CASE WHEN :state = 2 AND :handler = '' THEN printf('c%031x', i) END,
       CASE WHEN :state = 2 AND :handler <> '' THEN 1 END,
       CASE WHEN :state = 2 AND :handler <> '' THEN :boot + :days END,
       CASE :state WHEN 2 THEN :now + :days END, CASE :state WHEN 2 THEN :days END,
       CASE :state WHEN 3 THEN :now END, CASE :state WHEN 3 THEN 'timeout' END,
       CASE WHEN :handler = '' AND :state <> 3 THEN :now + :days + i END
FROM n
"""
_FILL_CLAIMS = """
INSERT INTO claims (queue, id, ttl, grace, empty, boot, deadline, deadline_wall)
SELECT :queue, :kind || substr(claim, 2), :days, :days, :empty, 1 + seq % 2, :boot + :days, :now + :days
FROM messages WHERE claim IS NOT NULL
"""
_COUNTS = """
INSERT INTO queues (name, waiting, delayed, leased, dead, posts, posts_delayed, posts_claimed)
VALUES (:queue, :each, :each, :each, :each * 2, :each, :each, :each)
"""
_FILL_KEYS = (
    "INSERT INTO spent SELECT :queue, printf('key-%d', seq), id, :later + seq FROM messages",
    "INSERT INTO done SELECT queue, key, until FROM spent",
    "INSERT INTO holds SELECT seq, printf('key:other-%d', seq), queue, holder FROM messages WHERE state = 2",
    "INSERT INTO starts SELECT 'mails', printf('concurrency:%d', seq % 1000), id, :now - 86400000000 - seq,"
    " :later + seq FROM messages",
    "INSERT INTO records (space, key, until, value) SELECT 'pools', key, until, x'7b7d' FROM spent",
    "INSERT INTO logs (space, name, place, line)"
    " SELECT 'history', printf('job-%d', seq / 1000), seq % 1000 + 1, x'7b7d' FROM messages",
    "UPDATE messages SET unique_key = printf('live-%d', seq) WHERE state <> 2 AND handler <> ''",
)


def fill(path: Path, each: int) -> None:
    """So many jobs and posts in every state, live claims of two boots, and as many of all that the key store keeps."""
    clock = ManualClock()
    given = {"queue": QUEUE, "now": micros(clock.wall()), "boot": micros(clock.boot()), "days": DAYS, "each": each}
    given["later"] = micros(clock.wall()) + DAYS
    with closing(sqlite3.connect(path)) as connection, connection:
        for handler, states in (("report", (0, 1, 2, 3)), ("", (4, 5, 2, 3))):
            for state in states:
                connection.execute(_FILL, {**given, "handler": handler, "state": state})
        connection.execute("INSERT INTO bodies SELECT seq, x'7b7d' FROM messages")
        for empty, kind in enumerate("ce"):
            connection.execute(_FILL_CLAIMS, {**given, "empty": empty, "kind": kind})
        for statement in (_COUNTS, *_FILL_KEYS):
            connection.execute(statement, given)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A file with few of each and one with many: to be copied."""
    folder = tmp_path_factory.mktemp("filled")
    paths = {each: folder / f"{each}.db" for each in (FEW, MANY)}
    for each, path in paths.items():
        SqliteBackend(str(path)).close()
        fill(path, each)
    return paths


@contextmanager
def opened(source: Path, path: Path, clock: ManualClock) -> Iterator[SqliteBackend]:
    """A backend on a copy."""
    shutil.copy(source, path)
    with closing(SqliteBackend(str(path), clock=clock, boot=1, caps=DeadCaps(most=10**6))) as backend:
        yield backend


def settle_each_way(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
    backend.enqueue_many([*numbered(5), a_job(identifier="given")])
    leases = backend.fetch_many(QUEUE, limit=10)
    backend.renew_many(leases, 30.0)
    verbs: list[Settlement] = [Ack(), Nack(), Abandon("x"), Release(), Nack(5.0), Ack((a_job(),)), *[Ack()] * 4]
    assert all(backend.settle_many(list(zip(leases, verbs, strict=True))))


TURNS = count(1)


def guard_some(backend: SqliteBackend, clock: ManualClock) -> None:
    """Everything about keys, in a queue of its own: the messages of the other have no envelope to move."""
    clock.advance(1.0)  # so that it sweeps
    turn = next(TURNS)
    backend.keys.take("mails", Rate(f"concurrency:{turn}", 4), "used")
    unique = [a_job(queue="mails", unique=True, idempotency_key=f"new-{turn}-{number}") for number in range(4)]
    backend.enqueue_many([*unique, a_job(unique=True, idempotency_key="live-1"), a_job(queue="mails")])
    leases = backend.fetch_many("mails", limit=5)
    rates = (Rate(f"concurrency:{turn}", 4), Rate("queue", 999))
    asked = [(lease, Guards(f"key-{lease.id}", 50.0, (Hold("queue", 99),), rates)) for lease in leases]
    answers = backend.keys.begin_many(asked)
    assert [answer.answer for answer in answers] == [Begin.GRANTED] * 3 + [Begin.LIMITED] * 2
    backend.keys.holders("mails", "queue")
    verbs: list[Settlement] = [Ack(), Release(begun=False), Move("others"), Nack(), Ack()]
    settlements = [(lease.guarded(guards), verb) for (lease, guards), verb in zip(asked, verbs, strict=True)]
    assert all(backend.settle_many(settlements))
    backend.bulk(MessageFilter(queue="mails"), Verb.DELETE)
    backend.bulk(MessageFilter(queue="others"), Verb.DELETE)
    backend.keys.first_run(QUEUE, "key-1")
    backend.keys.forget("mails", "key-1")
    for number in range(3):
        backend.keys.take("mails", Rate(f"own-{turn}", 2), f"token-{number}")


def note_some(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
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


def change_many(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
    dead = MessageFilter(queue=QUEUE, states=(State.DEAD,))
    for verb in (Verb.RETRY, Verb.RESUME):
        assert backend.bulk(dead, verb, limit=5) == 5
    backend.bulk(MessageFilter(ids=("report-0-1", "report-0-2")), Verb.DELETE, limit=5)


def look(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
    for states in ((), (State.WAITING,), (State.DELAYED,), (State.LEASED,), (State.DEAD,), (State.WAITING, State.DEAD)):
        for queue in (QUEUE, None):
            page = backend.list_messages(MessageFilter(queue=queue, states=states), limit=20)
            backend.list_messages(MessageFilter(queue=queue, states=states), after=page[-1].cursor, limit=20)
    for held in (False, True):
        free = backend.claims.list_free(QUEUE, limit=20, claimed=held)
        backend.claims.list_free(QUEUE, limit=20, claimed=held, after=free[-1].cursor)
    claims = backend.claims.list_claims(QUEUE, limit=20)
    backend.claims.list_claims(QUEUE, limit=20, after=claims[-1].id)
    backend.claims.stats(QUEUE)
    backend.stats(QUEUE)
    backend.queues()
    backend.inspect("-4-1")
    backend.inspect("report-0-1")
    backend.count(MessageFilter(queue=QUEUE), cap=20)


def find_nothing(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
    assert backend.claims.claim("nothing", limit=1, ttl=60.0, grace=60.0) is None
    assert backend.claims.pop("nothing", 1) == []
    assert backend.reap(QUEUE) == []
    assert backend.wait_any(["nothing"], 0.0) is None
    assert backend.evicted(QUEUE) == 0
    assert backend.claims.release(QUEUE, "b" * 32) == 0


def post_and_claim(backend: SqliteBackend, clock: ManualClock) -> None:
    """All that is done with a claim."""
    known = post(backend, b"0", b"1", life=1000.0) + post(backend, b"2", ident="mine") + post(backend, b"3")
    backend.enqueue(a_job())
    backend.enqueue(a_job(scheduled_at=at(clock.wall() + 1.0)))
    post(backend, b"delayed", delay=1.0)
    clock.advance(1.0)
    held = claim(backend, 7, claim_id="a" * 32)
    assert ids(held.messages)[:4] == known
    assert claim(backend, 7, claim_id="a" * 32).messages == held.messages
    assert backend.claims.get(QUEUE, held.id).count == backend.claims.renew(QUEUE, held.id, ttl=60.0).count == 7
    backend.claims.delete_many(QUEUE, [*known[:2], "unknown", "-4-1"], held.id)
    assert backend.claims.release(QUEUE, held.id) == 5
    assert len(backend.claims.pop(QUEUE, 5)) == 5
    backend.claims.delete_many(QUEUE, ["unknown", "-2-1", "report-2-1"])


def let_claims_end(backend: SqliteBackend, clock: ManualClock) -> None:
    """Each way in which what has ended is cleared."""
    for clear in (
        lambda: backend.claims.stats(QUEUE),
        lambda: backend.claims.list_free(QUEUE, limit=5),
        lambda: backend.reap(QUEUE),
        lambda: backend.reap_expired(QUEUE),
        lambda: claim(backend, 1),
    ):
        post(backend, b"ends", life=60.0)
        known = post(backend, b"0", b"1")
        backend.enqueue(a_job())
        emptied, other = claim(backend, 2, ttl=60.0), claim(backend, 2, ttl=60.0)
        backend.claims.delete_many(QUEUE, ids(emptied.messages), emptied.id)
        assert known[1] in ids(other.messages)
        clock.advance(60.0)
        clear()
        for held in backend.claims.list_claims(QUEUE, limit=5):
            if held.id[0] not in "ce":
                backend.claims.release(QUEUE, held.id)
        backend.claims.pop(QUEUE, 2)


def claim_too_often(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
    known = post(backend, *(b"%d" % number for number in range(6)))
    for number in range(3):
        backend.claims.release(QUEUE, claim(backend, 5, claim_id=f"{number:032x}").id)
    held = claim(backend, 2, max_claims=3)
    assert ids(held.messages)[0] == known[5]
    where = MessageFilter(ids=tuple(known[:5]))
    assert backend.bulk(where, Verb.RETRY, limit=2) == 2
    assert backend.bulk(where, Verb.RESUME) == 3
    backend.claims.delete_many(QUEUE, ids(held.messages), held.id)
    backend.claims.release(QUEUE, held.id)
    assert ids(backend.claims.pop(QUEUE, 5)) == known[:5]


def run_jobs(backend: SqliteBackend, clock: ManualClock) -> None:
    """What a pool does beside all that."""
    backend.claims.post(QUEUE, [a_post(ident="given")])
    backend.enqueue_many([a_job(), a_job(identifier="given")])
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    clock.advance(1.0)
    assert len(backend.reap(QUEUE)) == 1
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert backend.ack(lease)
    backend.wait_any([QUEUE], 0.0)
    backend.claims.delete_many(QUEUE, ["given"])


WORK: dict[str, Callable[[SqliteBackend, ManualClock], None]] = {
    "post, claim, delete, release, pop": post_and_claim,
    "claims and lives that end": let_claims_end,
    "claimed too often": claim_too_often,
    "jobs beside it": run_jobs,
    "enqueue, fetch, settle": settle_each_way,
    "keys, places and rates": guard_some,
    "records and logs": note_some,
    "reap": reap_some,
    "bulk": change_many,
    "lists and counts": look,
    "nothing to do": find_nothing,
}
SCANNED = re.compile(r"SCAN (messages|bodies|claims|ended|spent|done|holds|starts|records|logs)\b")


def test_no_statement_scans_what_is_there(filled: dict[int, Path], tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "full.db"
    with opened(filled[MANY], path, clock) as backend:
        statements: set[str] = set()
        for work in WORK.values():
            statements |= traced(backend, lambda work=work: work(backend, clock))  # type: ignore[misc]
        statements |= traced(backend, lambda: backend.keys.list_logs("history"))
        with closing(SqliteBackend(str(path), clock=clock, boot=1, caps=DeadCaps(MANY // 2, 10**9))) as capped:
            statements |= traced(capped, lambda: reap_some(capped, clock))
            assert capped.evicted(QUEUE) > 0
        plans = explained(backend, statements)
    assert len(plans) > 110
    assert not {sql: plan for sql, plan in plans.items() if SCANNED.search(plan) and not looks_at_a_page(sql)}
    assert not {sql: plan for sql, plan in plans.items() if "TEMP B-TREE" in plan and not sorts_few(sql)}
    used = set(re.findall(r"INDEX (\w+)", "\n".join(plans.values())))
    assert used >= {"messages_posts", "messages_posts_due", "messages_claimed", "messages_ending"}
    assert used >= {"claims_by_end", "claims_by_end_wall"}


def looks_at_a_page(sql: str) -> bool:
    """Whether the statement walks along a table, but over the rows of one page."""
    return "AS page" in sql


def sorts_few(sql: str) -> bool:
    """Whether the statement may sort: messages named one by one, or those that fell due and were not taken since."""
    return "json_each" in sql or "_due WHERE" in sql or "INDEXED BY messages_due" in sql


@pytest.mark.parametrize("name", WORK)
def test_the_cost_grows_neither_with_claims_nor_with_messages(
    filled: dict[int, Path], tmp_path: Path, name: str
) -> None:
    costs = []
    for source in filled.values():
        clock = ManualClock()
        with opened(source, tmp_path / source.name, clock) as backend:
            WORK[name](backend, clock)  # the first time prepares statements
            clock.advance(700.0)  # ids that were given are forgotten
            backend.keys.forget(QUEUE, "any")  # it sweeps
            costs.append(instructions(backend, partial(WORK[name], backend, clock)))
    few, many = costs
    assert many <= few * 1.5 + 5 * OPCODES
