"""An enqueue and an ack on a connection of the caller's own: what its transaction decides, and never without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.claims import AT_ONCE
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import NewBatch
from jobpool.client.jobs import Jobs
from jobpool.errors import ConfigurationError, LeaseLost
from jobpool.message.guards import Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Settled

pytestmark = pytest.mark.needs("enqueue_in_transaction", "ack_in_transaction")

REFUSED = "the connection is in autocommit, with no transaction open: "


@pytest.fixture
def autocommit(harness: Harness) -> Iterator[Any]:
    with closing(harness.own_connection(autocommit=True)) as connection:
        yield connection


@pytest.fixture
def connection(harness: Harness) -> Iterator[Any]:
    """A connection in whose transactions an application's own rows are written, too."""
    with closing(harness.own_connection()) as connection:
        connection.execute("CREATE TEMPORARY TABLE mine (name text)")
        connection.commit()
        yield connection


def effects(connection: Any) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM mine").fetchall()]


# --- in autocommit ----------------------------------------------------------------------------------------


def test_an_enqueue_and_an_ack_in_autocommit_are_refused_without_a_transaction(
    harness: Harness, backend: QueueBackend, autocommit: Any
) -> None:
    with pytest.raises(ConfigurationError, match=REFUSED):
        backend.enqueue_in(autocommit, [a_job()])
    assert backend.stats(QUEUE).waiting == 0
    lease = new_lease(backend)
    with pytest.raises(ConfigurationError, match=REFUSED):
        harness.ack_within(autocommit, backend.ticket(lease), [backend.pack(a_job("next"))])
    assert backend.stats(QUEUE).waiting == 0
    assert backend.ack(lease) is Settled.OK


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_is_open_in_autocommit_decides(backend: QueueBackend, autocommit: Any, end: str) -> None:
    autocommit.execute("BEGIN")
    backend.enqueue_in(autocommit, [a_job()])
    assert backend.stats(QUEUE).waiting == 0
    autocommit.execute(end)
    assert backend.stats(QUEUE).waiting == (end == "COMMIT")


def test_an_ack_in_autocommit_belongs_to_the_transaction_that_is_open(
    harness: Harness, backend: QueueBackend, autocommit: Any
) -> None:
    lease = new_lease(backend)
    autocommit.execute("BEGIN")
    still_open = harness.ack_within(autocommit, backend.ticket(lease))
    assert still_open()
    autocommit.execute("COMMIT")
    assert not still_open()
    assert backend.ack(lease) is Settled.ALREADY


# --- enqueue ----------------------------------------------------------------------------------------------


def test_a_job_is_there_when_the_transaction_commits(backend: QueueBackend, connection: Any) -> None:
    known = backend.enqueue_in(connection, [a_job("one"), a_job("two")])
    assert backend.stats(QUEUE).waiting == 0
    connection.commit()
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=5)] == known


def test_a_job_never_was_when_it_rolls_back(backend: QueueBackend, connection: Any) -> None:
    Jobs(backend=backend).enqueue(a_job(identifier="order-1"), connection=connection)
    connection.rollback()
    assert backend.stats(QUEUE).pending == 0
    assert backend.inspect("order-1") is None
    backend.enqueue(a_job(identifier="order-1"))
    assert backend.stats(QUEUE).waiting == 1


def test_a_known_id_stays_as_it_is(backend: QueueBackend, connection: Any) -> None:
    backend.enqueue(a_job("first", identifier="order-1"))
    assert backend.enqueue_in(connection, [a_job("second", identifier="order-1")]) == ["order-1"]
    connection.commit()
    assert [message.id for message in backend.list_messages()] == ["order-1"]


# --- ack --------------------------------------------------------------------------------------------------


def test_an_ack_comes_true_with_the_commit_and_is_then_known(
    harness: Harness, backend: QueueBackend, connection: Any
) -> None:
    lease = new_lease(backend, identifier="order-1")
    connection.execute("INSERT INTO mine VALUES ('effect')")
    still_open = harness.ack_within(connection, backend.ticket(lease), [backend.pack(a_job("next"))])
    assert still_open()
    assert (backend.stats(QUEUE).leased, backend.stats(QUEUE).waiting) == (1, 0)
    connection.commit()
    assert not still_open()
    assert backend.ack(lease) is Settled.ALREADY
    assert backend.settle_many([(lease, Ack((a_job("not again"),)))], f"ack:{lease.owner_token}") == [Settled.ALREADY]
    assert (backend.stats(QUEUE).leased, backend.stats(QUEUE).waiting) == (0, 1)
    assert effects(connection) == ["effect"]
    backend.enqueue(a_job(identifier="order-1"))  # remembered: it has just ended
    assert backend.stats(QUEUE).waiting == 1


def test_an_ack_that_is_rolled_back_never_was(harness: Harness, backend: QueueBackend, connection: Any) -> None:
    lease = new_lease(backend)
    connection.execute("INSERT INTO mine VALUES ('effect')")
    still_open = harness.ack_within(connection, backend.ticket(lease), [backend.pack(a_job("next"))])
    connection.rollback()
    assert not still_open()
    assert backend.stats(QUEUE).leased == 1
    assert backend.renew(lease, 30.0).owner_token == lease.owner_token
    assert backend.ack(lease) is Settled.OK
    assert backend.stats(QUEUE).pending == 0
    assert effects(connection) == []


def test_an_ack_twice_in_one_transaction_is_one(harness: Harness, backend: QueueBackend, connection: Any) -> None:
    lease = new_lease(backend)
    for _ in range(2):
        harness.ack_within(connection, backend.ticket(lease), [backend.pack(a_job("next"))])
    connection.commit()
    assert backend.stats(QUEUE).pending == 1


def test_a_lost_connection_is_no_open_transaction(harness: Harness, backend: QueueBackend, connection: Any) -> None:
    lease = new_lease(backend)
    still_open = harness.ack_within(connection, backend.ticket(lease))
    connection.close()
    assert not still_open()
    wait_until(lambda: backend.ack(lease) is Settled.OK, what="the server has rolled back")


def test_a_lease_that_has_ended_is_refused(harness: Harness, backend: QueueBackend, connection: Any) -> None:
    lease = new_lease(backend, ttl=5.0)
    harness.expire_leases(5.0)
    connection.execute("INSERT INTO mine VALUES ('effect')")
    with pytest.raises(LeaseLost, match=f"{lease.id} in queue 'reports' has ended: expired"):
        harness.ack_within(connection, backend.ticket(lease), [backend.pack(a_job("next"))])
    connection.rollback()
    assert effects(connection) == []
    assert (backend.stats(QUEUE).leased, backend.stats(QUEUE).waiting) == (1, 0)


def test_a_message_that_somebody_else_holds_is_refused(
    harness: Harness, backend: QueueBackend, connection: Any
) -> None:
    lease = new_lease(backend, ttl=5.0)
    harness.expire_leases(5.0)
    assert len(backend.reap(QUEUE, AT_ONCE)) == 1
    [again] = backend.fetch_many(QUEUE, limit=1)
    with pytest.raises(LeaseLost, match=r"has ended: not.(the )?owner"):
        harness.ack_within(connection, backend.ticket(lease))
    connection.rollback()
    assert backend.ack(again) is Settled.OK
    with pytest.raises(LeaseLost, match=r"has ended: not.in.flight"):
        harness.ack_within(connection, backend.ticket(lease))


# --- keys -------------------------------------------------------------------------------------------------

KEY = Guards(key="order-17", keep=100.0)


def guarded(backend: QueueBackend, ttl: float) -> JobLease:
    """A new message of a unique job, which runs under the key."""
    backend.enqueue(UNIQUE)
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=ttl)
    assert backend.keys.begin_many([(lease, KEY)])[0]
    return lease.guarded(KEY)


UNIQUE = a_job(unique=True, idempotency_key="order-17")


@pytest.mark.needs("key_store")
@pytest.mark.parametrize("commits", [True, False])
def test_a_key_is_done_with_the_commit_and_its_unique_job_stays_known(
    harness: Harness, backend: QueueBackend, connection: Any, commits: bool
) -> None:
    lease = guarded(backend, 1000.0)
    follow_up = a_job(unique=True, idempotency_key="order-18")
    harness.ack_within(connection, backend.ticket(lease), [backend.pack(UNIQUE), backend.pack(follow_up)])
    assert backend.keys.holders(QUEUE, "key:order-17") == [lease.id]
    connection.commit() if commits else connection.rollback()
    assert backend.keys.holders(QUEUE, "key:order-17") == ([] if commits else [lease.id])
    assert backend.enqueue(UNIQUE) == lease.id
    if not commits:
        assert backend.keys.first_run(QUEUE, "order-17")
        assert backend.ack(lease) is Settled.OK
        return
    [brought] = backend.list_messages()
    assert backend.enqueue(follow_up) == brought.id
    harness.advance(KEY.keep - harness.tick)
    assert not backend.keys.first_run(QUEUE, "order-17")
    assert backend.enqueue(UNIQUE) == lease.id
    harness.advance(harness.tick)
    assert backend.keys.first_run(QUEUE, "order-17")
    assert backend.enqueue(UNIQUE) != lease.id


@pytest.mark.needs("key_store")
def test_a_lease_that_has_ended_marks_no_key(harness: Harness, backend: QueueBackend, connection: Any) -> None:
    lease = guarded(backend, 5.0)
    harness.expire_leases(5.0)
    with pytest.raises(LeaseLost):
        harness.ack_within(connection, backend.ticket(lease))
    connection.rollback()
    assert backend.keys.first_run(QUEUE, "order-17")


@pytest.mark.needs("key_store")
def test_unique_jobs_in_a_transaction_are_there_with_its_commit(backend: QueueBackend, connection: Any) -> None:
    backend.enqueue_in(connection, [UNIQUE])
    connection.rollback()
    [ident] = backend.enqueue_in(connection, [UNIQUE])
    assert backend.enqueue_in(connection, [a_job(), UNIQUE])[1] == ident
    connection.commit()
    assert backend.enqueue(UNIQUE) == ident
    assert backend.stats(QUEUE).waiting == 2


# --- batches ----------------------------------------------------------------------------------------------


def progress(backend: QueueBackend) -> tuple[int, int]:
    """How many members the batch has, and how many have succeeded."""
    batch = backend.batches.get("batch")
    assert batch is not None
    return batch.total, batch.succeeded


def test_a_member_ends_with_the_commit_and_the_callback_comes_once(
    harness: Harness, backend: QueueBackend, connection: Any
) -> None:
    done = backend.pack(a_job("done", queue="done"))
    backend.batches.open(NewBatch("batch", on_done=done))
    lease = new_lease(backend, batch="batch")
    backend.batches.close("batch")
    harness.ack_within(connection, backend.ticket(lease))
    connection.rollback()
    assert progress(backend) == (1, 0)
    for _ in range(2):
        harness.ack_within(connection, backend.ticket(lease))
    assert (progress(backend), backend.stats("done").pending) == ((1, 0), 0)
    connection.commit()
    assert (progress(backend), backend.stats("done").waiting) == ((1, 1), 1)
    assert backend.ack(lease) is Settled.ALREADY
    assert backend.stats("done").waiting == 1


def test_members_join_with_the_commit(backend: QueueBackend, connection: Any) -> None:
    backend.batches.open(NewBatch("batch"))
    backend.enqueue_in(connection, [a_job(batch="batch"), a_job(batch="batch")])
    assert progress(backend) == (0, 0)
    connection.commit()
    assert progress(backend) == (2, 0)
    backend.enqueue_in(connection, [a_job(batch="batch")])
    connection.rollback()
    assert progress(backend) == (2, 0)
