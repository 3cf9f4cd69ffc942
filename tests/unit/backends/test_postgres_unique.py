"""Unique enqueue among other transactions: one wins, and the others are told its id, whenever it commits."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from postgres_rig import Rig, together
from support.jobs import QUEUE, a_job, numbered
from support.waiting import wait_until

from jobpool.message.definition import JobDefinition
from jobpool.message.guards import Guards
from jobpool.message.lease import JobLease
from jobpool_backends.postgres import PostgresBackend, enqueue
from jobpool_backends.postgres.in_transaction import ack

PATIENCE = 30

Connection = psycopg.Connection[Any]


def unique(key: str = "order-17", **fields: Any) -> JobDefinition:
    return a_job(unique=True, idempotency_key=key, **fields)


def a_lease(backend: PostgresBackend) -> JobLease:
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=300.0)
    return lease


def waits_for_a_transaction(rig: Rig) -> bool:
    return bool(rig.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"))


# --- a first one that has not committed yet -----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3], ids=["alone", "among others"])
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_waits_for_the_first_and_is_told_its_id_if_it_commits(
    rig: Rig, backend: PostgresBackend, connection: Connection, count: int, commits: bool
) -> None:
    [first] = backend.enqueue_in(connection, [unique()])
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(backend.enqueue_many, [*numbered(count - 1), unique()])
        wait_until(lambda: waits_for_a_transaction(rig), what="the second waits for the first")
        connection.commit() if commits else connection.rollback()
        told = second.result(PATIENCE)[-1]
    assert (told == first) is commits
    assert backend.stats(QUEUE).waiting == count
    assert backend.inspect(told) is not None


def test_who_has_a_known_key_in_an_open_transaction_keeps_nobody_waiting(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    """It has changed nothing, so there is nothing to wait for: not for other producers, nor for the ack."""
    known = backend.enqueue(unique())
    assert backend.enqueue_in(connection, [unique()]) == [known]
    quick = rig.open(timeout=1.0)
    assert quick.enqueue(unique()) == known
    assert quick.ack(a_lease(quick))


def test_an_ack_in_an_open_transaction_keeps_no_producer_waiting(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    known = backend.enqueue(unique())
    ack(connection, backend.ticket(a_lease(backend)))
    assert rig.open(timeout=1.0).enqueue(unique()) == known
    connection.commit()
    assert backend.enqueue(unique()) == known


def test_producers_in_any_order_agree_without_a_dead_lock(rig: Rig, backend: PostgresBackend) -> None:
    before = rig.dead_locks()
    pools = [rig.open(timeout=PATIENCE) for _ in range(6)]
    told: list[tuple[str, str]] = []

    def produce(number: int) -> None:
        keys = [f"order-{key}" for key in range(40)]
        random.Random(number).shuffle(keys)
        for piece in (keys[:1], keys[1:20], keys[20:]):
            told.extend(zip(piece, pools[number].enqueue_many([unique(key) for key in piece]), strict=True))

    together(6, produce)
    assert len(told) == 240
    assert len(set(told)) == 40
    assert {message.id for message in backend.list_messages(limit=1000)} == {ident for _, ident in told}
    for pool in pools:
        pool.close()
    assert rig.dead_locks() == before


# --- a claim and its message come and go together -----------------------------------------------------------


def test_a_message_that_was_deleted_by_hand_has_no_key(rig: Rig, backend: PostgresBackend) -> None:
    gone = backend.enqueue(unique())
    rig.ask("DELETE FROM {schema}.messages")
    pools = [rig.open(timeout=PATIENCE) for _ in range(6)]
    told = set[str]()
    together(6, lambda number: told.add(pools[number].enqueue(unique())))
    assert len(told) == 1
    assert gone not in told
    assert backend.stats(QUEUE).waiting == 1


def test_a_known_key_ends_at_its_time_to_the_microsecond(rig: Rig, backend: PostgresBackend) -> None:
    known = backend.enqueue(unique())
    guards = Guards(key="order-17", keep=500.0)
    backend.ack(a_lease(backend).guarded(guards))
    [(left,)] = rig.ask("SELECT until - {schema}.moment() FROM {schema}.uniques")
    assert 400e6 < left <= 500e6
    assert backend.enqueue(unique()) == known
    rig.ask("UPDATE {schema}.uniques SET until = {schema}.moment()")
    assert backend.enqueue(unique()) != known


# --- many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 5])
def test_many_at_once_are_all_or_none_however_they_travel(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr(enqueue, "_PIECE_MESSAGES", 500 // pieces)
    known = backend.enqueue(unique("order-250"))
    ids = backend.enqueue_many([unique(f"order-{number}") for number in range(500)])
    assert ids[250] == known
    assert backend.enqueue_many([unique(f"order-{number}") for number in range(500)]) == ids
    payloads = [message.id for message in backend.list_messages(limit=1000)]
    assert payloads[0] == known
    assert payloads[1:] == ids[:250] + ids[251:]


# --- follow-ups and a handler's own transaction -------------------------------------------------------------


def test_a_ticket_says_nothing_of_keys_where_there_are_none(backend: PostgresBackend) -> None:
    backend.enqueue(a_job())
    lease = a_lease(backend)
    assert not {"key", "keep"} & set(backend.ticket(lease))
    guarded = backend.ticket(lease.guarded(Guards(key="order-17", keep=1.5)))
    assert (guarded["key"], guarded["keep"]) == ("order-17", 1_500_000)
