"""With thousands of live claims, and of messages in every state, no statement of a claim reads more than its share."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlite_explained import OPCODES, explained, instructions, traced
from support.claims import a_post, claim, ids, post
from support.jobs import QUEUE, a_job, at

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.clock import ManualClock
from jobpool_backends.shared import DeadCaps, micros
from jobpool_backends.sqlite import SqliteBackend

FEW, MANY = 40, 4000
DAYS = 10**12
"""Microseconds."""

# What is there first, and cannot be claimed; and, of a later priority, what can.
_FILL = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :each)
INSERT INTO messages (id, given, queue, handler, priority, state, enqueued_at, available_at,
                      holder, claim, boot, deadline, deadline_wall, ttl, died_at, reason, ends_at)
SELECT printf('%s-%d-%d', :handler, :state, i), 0, :queue, :handler, 9, :state, :now, :now + :days,
       CASE :state WHEN 2 THEN printf('c%031x', i) END,
       CASE WHEN :state = 2 AND :handler = '' THEN printf('c%031x', i) END,
       CASE WHEN :state = 2 AND :handler <> '' THEN 1 END,
       CASE WHEN :state = 2 AND :handler <> '' THEN :boot + :days END,
       CASE :state WHEN 2 THEN :now + :days END, CASE :state WHEN 2 THEN :days END,
       CASE :state WHEN 3 THEN :now END, CASE :state WHEN 3 THEN 'claim-limit' END,
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


def fill(path: Path, each: int) -> None:
    """So many jobs and posts in every state, and live claims, with a message and empty, of two boots."""
    clock = ManualClock()
    given = {"queue": QUEUE, "now": micros(clock.wall()), "boot": micros(clock.boot()), "days": DAYS, "each": each}
    with closing(sqlite3.connect(path)) as connection, connection:
        for handler, states in (("report", (0, 1, 2, 3)), ("", (4, 5, 2, 3))):
            for state in states:
                connection.execute(_FILL, {**given, "handler": handler, "state": state})
        connection.execute("INSERT INTO bodies SELECT seq, x'7b7d' FROM messages")
        for empty, kind in enumerate("ce"):
            connection.execute(_FILL_CLAIMS, {**given, "empty": empty, "kind": kind})
        connection.execute(_COUNTS, given)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A file with few of each and one with many: to be copied."""
    folder = tmp_path_factory.mktemp("claims")
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


def look(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
    for held in (False, True):
        page = backend.claims.list_free(QUEUE, limit=20, claimed=held)
        backend.claims.list_free(QUEUE, limit=20, claimed=held, after=page[-1].cursor)
    claims = backend.claims.list_claims(QUEUE, limit=20)
    backend.claims.list_claims(QUEUE, limit=20, after=claims[-1].id)
    backend.claims.stats(QUEUE)
    backend.stats(QUEUE)
    backend.queues()
    backend.inspect("-4-1")
    for states in ((), (State.WAITING,), (State.DELAYED,), (State.LEASED,), (State.DEAD,)):
        backend.list_messages(MessageFilter(queue=QUEUE, states=states), limit=20)


def find_nothing(backend: SqliteBackend, clock: ManualClock) -> None:
    del clock
    assert backend.claims.claim("nothing", limit=1, ttl=60.0, grace=60.0) is None
    assert backend.claims.pop("nothing", 1) == []
    assert backend.reap(QUEUE) == []
    assert backend.claims.release(QUEUE, "b" * 32) == 0


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
    "lists and counts": look,
    "nothing to do": find_nothing,
    "jobs beside it": run_jobs,
}
SCANNED = re.compile(r"SCAN (messages|bodies|claims|ended)\b")


def test_no_statement_scans_claims_or_messages(filled: dict[int, Path], tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(filled[MANY], tmp_path / "full.db", clock) as backend:
        statements: set[str] = set()
        for work in WORK.values():
            statements |= traced(backend, lambda work=work: work(backend, clock))  # type: ignore[misc]
        plans = explained(backend, statements)
    assert len(plans) > 60
    assert not {sql: plan for sql, plan in plans.items() if SCANNED.search(plan)}
    assert not {sql: plan for sql, plan in plans.items() if "TEMP B-TREE" in plan and not sorts_few(sql)}
    used = set(re.findall(r"INDEX (\w+)", "\n".join(plans.values())))
    assert used >= {"messages_posts", "messages_posts_due", "messages_claimed", "messages_ending"}
    assert used >= {"claims_by_end", "claims_by_end_wall"}


def sorts_few(sql: str) -> bool:
    """Whether the statement may sort: messages named one by one, or those that fell due and were not taken since."""
    return "json_each" in sql or "_due WHERE" in sql


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
            costs.append(instructions(backend, lambda backend=backend, clock=clock: WORK[name](backend, clock)))
    few, many = costs
    assert many <= few * 1.5 + 5 * OPCODES
