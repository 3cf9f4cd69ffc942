"""Rows that another program has written: each is dead or run, and neither a pool nor the jobs beside it suffer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import postgres_rig
import pytest
import redis_rig
from support.claims import AT_ONCE
from support.jobs import QUEUE, a_job, numbered
from support.tables import row

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import BackendUnavailable
from jobpool.message.outcome import Rejected
from jobpool.message.settlement import Abandon, Ack, Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import LeaseInspector
from jobpool_backends.sqlite import SqliteBackend

DEAD = MessageFilter(states=(State.DEAD,))
MAX_BIGINT, MIN_BIGINT = 2**63 - 1, -(2**63)


def look_round(backend: QueueBackend) -> int:
    """All that a pool or a person reads; returns how many messages there are."""
    assert backend.queues() in ([], [QUEUE])
    backend.stats(QUEUE)
    found = backend.list_messages(MessageFilter(), limit=10)
    assert backend.list_messages(MessageFilter(queue=QUEUE, text="nowhere")) == []
    return len(found)


def go_on(backend: QueueBackend, change: Callable[[], object], *, leased: bool) -> None:
    """Change the first of two messages, while it waits or when its lease has just ended; run both as a pool does."""
    backend.enqueue_many(numbered(2))
    if leased:
        [lease] = backend.fetch_many(QUEUE, limit=1)
        assert backend.forfeit(lease, "") is Settled.OK
    change()
    assert look_round(backend) == 2
    assert len(backend.reap(QUEUE, AT_ONCE)) == leased
    assert look_round(backend) == 2
    inspector, acked = LeaseInspector(EnvelopeSigner(), {}), []
    for lease in backend.fetch_many(QUEUE, limit=10):
        if isinstance(inspector.inspect(lease, float), Rejected):
            assert backend.settle_many([(lease, Abandon("rejected", "changed"))]) == [Settled.OK]
        else:
            assert backend.settle_many([(lease, Ack())]) == [Settled.OK]
            acked.append(lease.envelope.payload)
    assert 1 in acked
    dead = backend.list_messages(DEAD)
    assert len(dead) + len(acked) == 2
    assert {message.reason for message in dead} <= {"rejected", "crash-limit"}
    assert look_round(backend) == len(dead)
    assert backend.bulk(DEAD, Verb.RETRY) == len(dead)
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == len(dead)
    assert look_round(backend) == 0


@pytest.mark.parametrize("leased", [False, True])
def test_of_sqlite(tmp_path: Path, leased: bool) -> None:
    columns = ("attempts", "crashes", "deliveries", "enqueued_at", "available_at", "last_crash")
    values = ("'x'", "x'00ff'", "1.5", "-1", MAX_BIGINT, MIN_BIGINT)
    changes = [f"UPDATE messages SET {column} = {value}" for column in columns for value in values]
    changes += [f"UPDATE bodies SET body = {value}" for value in ("'x'", "5", "CAST(x'ff' AS TEXT)")]
    changes += ["DELETE FROM bodies"]
    for number, change in enumerate(changes):
        path = tmp_path / f"{number}.db"
        with row(change), closing(SqliteBackend(str(path))) as backend:
            go_on(backend, partial(_ask, path, f"{change} WHERE seq = 1"), leased=leased)


def test_a_text_that_is_not_utf8_is_an_outage_of_sqlite(tmp_path: Path) -> None:
    with closing(SqliteBackend(str(path := tmp_path / "odd.db"))) as backend:
        backend.enqueue_many(numbered(2))
        _ask(path, "UPDATE messages SET id = CAST(x'ff' AS TEXT) WHERE seq = 1")
        backend.enqueue(a_job(queue="other"))
        with pytest.raises(BackendUnavailable, match="changed by hand"):
            backend.fetch_many(QUEUE, limit=1)
        assert backend.fetch("other")


def _ask(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql)


@pytest.mark.parametrize("leased", [False, True])
def test_of_postgres(leased: bool) -> None:
    integer = 2**31 - 1
    for change in (
        f"deliveries = {MAX_BIGINT}",
        "deliveries = -1",
        f"attempts = {integer}",
        "attempts = -5",
        f"crashes = {integer - 1}, last_crash = NULL",
        f"enqueued_at = {MAX_BIGINT}",
        f"enqueued_at = {MIN_BIGINT}",
        f"available_at = {MAX_BIGINT}",
        f"available_at = {MIN_BIGINT}",
        f"last_crash = {MIN_BIGINT}",
        f"last_crash = {MAX_BIGINT}",
        "body = ''",
    ):
        with row(change), postgres_rig.Rig() as rig:
            sql = f"UPDATE {{schema}}.messages SET {change} WHERE seq = (SELECT min(seq) FROM {{schema}}.messages)"
            go_on(rig.open(), partial(rig.ask, f"{sql} RETURNING 1"), leased=leased)


@pytest.mark.parametrize("leased", [False, True])
def test_of_redis(leased: bool) -> None:
    for change in (
        *[b"%b 0 0 - 1795814869650955 mID raw" % odd for odd in (b"x", b"1.5", b"nan", b"-1", b"1e99", b"9" * 500)],
        *[b"0 %b 0 - 1795814869650955 mID raw" % odd for odd in (b"x", b"1.5", b"inf", b"-1", b"0x10", b"9" * 500)],
        *[b"0 0 %b - 1795814869650955 mID raw" % odd for odd in (b"x", b"1.5", b"nan", b"-1", b"1e99", b"9" * 500)],
        *[b"0 0 0 - %b mID raw" % odd for odd in (b"x", b"1.5", b"inf", b"-1", b"9" * 500)],
        b"0 0 0 x 1795814869650955 mID raw",
        b"0 0 0 - 1795814869650955 mID",
        b"0 0 0 - 1795814869650955 m\xff raw",
        b"0 0 0 - 1795814869650955 mID \xff\x1b",
        b"0 0 0 - 1795814869650955 mID raw\nx y z",
        b"0 0 0 - 1795814869650955 mID raw\n1 y -",
        b"junk",
        b"",
    ):
        with row(repr(change[:60])), redis_rig.Rig() as rig:
            go_on(rig.open(), partial(_write, rig, change), leased=leased)


def test_a_number_out_of_range_is_an_outage_of_postgres() -> None:
    """In functions of a schema that was made before they bounded it."""
    with postgres_rig.Rig(new=True) as rig:
        backend = rig.open()
        backend.enqueue_many(numbered(2))
        rig.rewrite("take_leases", f"least(m.deliveries, {MAX_BIGINT - 1})", "m.deliveries")
        rig.ask(f"UPDATE {{schema}}.messages SET deliveries = {MAX_BIGINT} RETURNING 1")
        with pytest.raises(BackendUnavailable, match="changed by hand"):
            backend.fetch_many(QUEUE, limit=1)


def _write(rig: redis_rig.Rig, record: bytes) -> None:
    """Put it in the place of the first message's record, after what says who has leased that; and spoil other keys."""
    first = sorted(rig.call("HKEYS", rig.key("record")))[0]
    before = rig.call("HGET", rig.key("record"), first)
    rig.call("HSET", rig.key("record"), first, (before[:32] if rig.holds("leased") else b"") + record)
    rig.call("HSET", rig.key("notes"), first, "{")
    rig.call("ZADD", rig.key("ready"), 0, "zzz", 0, "999", 0, "!", 0, b"\xff\n")
    rig.call("SADD", rig.keys.queues, b"\xff", "bad queue", "{x}")


def test_a_key_of_another_type_is_an_outage_of_redis() -> None:
    with redis_rig.Rig() as rig:
        backend = rig.open()
        backend.enqueue_many(numbered(2))
        rig.call("DEL", rig.key("record"))
        rig.call("SET", rig.key("record"), "x")
        with pytest.raises(BackendUnavailable, match="remove that key"):
            backend.fetch_many(QUEUE, limit=1)
