"""What the contract suite cannot see of an enqueue and an ack within a transaction of the caller's own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from postgres_rig import Rig
from psycopg.rows import dict_row
from support.jobs import QUEUE, a_job, new_lease, unique
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.broker.values import LOOK_INTERVAL_S
from jobpool.errors import ConfigurationError, LeaseLost
from jobpool.message.settlement import Ack, Nack, Settled
from jobpool_backends.postgres import PostgresBackend, in_transaction
from jobpool_backends.postgres.in_transaction import ack

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(rig: Rig, backend: PostgresBackend) -> Connection:
    del backend
    connection = rig.connect()
    connection.execute(f"CREATE TABLE {rig.schema}.mine (name text)")
    connection.commit()
    return connection


def test_the_first_job_of_all_may_come_this_way() -> None:
    with Rig(new=True) as rig:
        backend = rig.open()
        with rig.connect() as connection:
            backend.enqueue_in(connection, [a_job()])
        assert backend.stats(QUEUE).waiting == 1


def test_the_commit_wakes_whoever_waits(rig: Rig, backend: PostgresBackend, connection: Connection) -> None:
    took = []
    for _ in range(3):
        waits = rig.open()  # where a look finds the job first, the notification stays behind for the next wait
        found = rig.submit(waits.wait_any, [QUEUE], 30.0)
        wait_until(lambda: rig.ask("SELECT queue FROM {schema}.sleepers"), what="it sleeps")
        assert waits.wait_any([QUEUE], LOOK_INTERVAL_S) is None  # so long that it looks seldom
        backend.enqueue_in(connection, [a_job()])
        started = time.monotonic()
        connection.commit()
        assert found.result(10.0) == QUEUE
        took.append(time.monotonic() - started)
        assert len(backend.fetch_many(QUEUE, limit=5)) == 1
    assert min(took) < LOOK_INTERVAL_S / 10


def test_an_open_transaction_keeps_nobody_from_ringing(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    found = rig.submit(backend.wait_any, [QUEUE], 30.0)
    wait_until(lambda: rig.ask("SELECT queue FROM {schema}.sleepers"), what="it sleeps")
    backend.enqueue_in(connection, [a_job()])
    rig.open().enqueue(a_job())
    assert found.result(10.0) == QUEUE


def test_an_open_transaction_holds_up_nobody(rig: Rig, backend: PostgresBackend, connection: Connection) -> None:
    """Enqueues, fetches and settlements of the same queue go on, and the order is kept as far as it can be."""
    backend.enqueue_in(connection, [a_job("late")])
    other = rig.open(timeout=1)
    [ident] = other.enqueue_many([a_job("early")])
    [lease] = other.fetch_many(QUEUE, limit=1)
    assert lease.id == ident
    assert other.ack(lease) is Settled.OK
    assert other.reap(QUEUE) == []
    connection.commit()
    assert other.stats(QUEUE).waiting == 1
    assert other.fetch(QUEUE) is not None


@pytest.mark.parametrize(
    "options",
    [{"row_factory": dict_row}, {"cursor_factory": psycopg.ClientCursor}, {"cursor_factory": psycopg.RawCursor}],
    ids=["rows as dictionaries", "parameters merged by the client", "numbered parameters"],
)
def test_the_callers_connection_keeps_its_ways(rig: Rig, backend: PostgresBackend, options: dict[str, Any]) -> None:
    connection = rig.connect(**options)
    before = (connection.row_factory, connection.cursor_factory, connection.prepare_threshold, connection.autocommit)
    for _ in range(7):
        [ident] = backend.enqueue_in(connection, [a_job()])
        connection.commit()
        [lease] = backend.fetch_many(QUEUE, limit=1)
        assert lease.id == ident
        still_open = ack(connection, backend.ticket(lease))
        assert still_open()
        connection.commit()
    after = (connection.row_factory, connection.cursor_factory, connection.prepare_threshold, connection.autocommit)
    assert before == after
    assert backend.stats(QUEUE).pending == 0


def test_in_a_pipeline_autocommit_is_refused_outside_a_transaction_alone(rig: Rig, backend: PostgresBackend) -> None:
    connection = rig.connect(autocommit=True)
    with connection.pipeline():
        with pytest.raises(ConfigurationError, match=r"in autocommit, with no .*: work within `with connection.trans"):
            backend.enqueue_in(connection, [a_job()])
        with connection.transaction():
            backend.enqueue_in(connection, [a_job()])
            assert backend.stats(QUEUE).waiting == 0
    assert backend.stats(QUEUE).waiting == 1


def test_errors_of_the_database_are_the_callers(backend: PostgresBackend, connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        backend.enqueue_in(connection, [a_job()])
    connection.rollback()
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        backend.enqueue_in(connection, [a_job()])


@pytest.fixture
def elsewhere(rig: Rig) -> Iterator[str]:
    """The URL of another database, whose name ends with `_other`."""
    rig.ask(f"CREATE DATABASE {rig.schema}_other")
    yield rig.server.url(f"{rig.schema}_other")
    rig.ask(f"DROP DATABASE {rig.schema}_other")


def test_another_database_is_named(rig: Rig, backend: PostgresBackend, elsewhere: str) -> None:
    told = f"leads to database '{rig.schema}_other' .* no current schema '{rig.schema}' of jobpool's: connect to"
    with psycopg.connect(elsewhere) as connection:
        with pytest.raises(ConfigurationError, match=told):
            backend.enqueue_in(connection, [a_job()])
        connection.rollback()


def test_another_database_with_a_schema_of_that_name_is_refused_too(
    rig: Rig, backend: PostgresBackend, elsewhere: str
) -> None:
    ticket, told = backend.ticket(new_lease(backend)), f"leads to database '{rig.schema}_other' .* is not the queue's"
    with closing(PostgresBackend.from_url(rig.url(base=elsewhere))) as other, psycopg.connect(elsewhere) as connection:
        other.prepare()
        for job in (a_job(), unique()):
            with pytest.raises(ConfigurationError, match=told):
                backend.enqueue_in(connection, [job])
        with pytest.raises(ConfigurationError, match=told):
            ack(connection, ticket)
        assert other.queues() == []


def test_a_schema_that_was_made_anew_is_found_again() -> None:
    with Rig(new=True) as rig:
        backend = rig.open()
        backend.prepare()
        rig.ask("DROP SCHEMA {schema} CASCADE")
        rig.open().prepare()
        with rig.connect() as connection:
            backend.enqueue_in(connection, [a_job()])
        assert backend.stats(QUEUE).waiting == 1


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("sqlalchemy.orm.session", r"session.connection\(\).connection.driver_connection"),
        ("psycopg2.extensions", r"open one with psycopg.connect\(\)"),
        ("asyncpg.connection", r"open one with psycopg.connect\(\)"),
        ("django.utils.connection", r"pass django.db.connection.connection"),
        ("somewhere", r"pass the one that psycopg.connect\(\) gave"),
    ],
)
def test_what_is_no_connection_is_refused_with_the_mend(
    backend: PostgresBackend, connection: Connection, module: str, told: str
) -> None:
    kind = type("Session", (), {"__module__": module})
    with pytest.raises(
        ConfigurationError, match=rf"of psycopg 3 \(psycopg.Connection\), not a {module}.Session: .*{told}"
    ):
        backend.enqueue_in(kind(), [a_job()])
    with pytest.raises(ConfigurationError, match=r"not a psycopg.Cursor: pass the connection itself, and not an asyn"):
        backend.enqueue_in(connection.cursor(), [a_job()])


def test_a_client_encoding_that_makes_bytes_of_texts_changes_nothing(rig: Rig, backend: PostgresBackend) -> None:
    connection = rig.connect(client_encoding="SQL_ASCII")
    [first] = backend.enqueue_in(connection, [unique("→")])
    assert backend.enqueue_in(connection, [unique("→")]) == [first]
    connection.commit()
    [lease] = backend.fetch_many(QUEUE, limit=1)
    ack(connection, backend.ticket(lease), [backend.pack(a_job("follow-up"))])
    connection.commit()
    [follow_up] = backend.fetch_many(QUEUE, limit=2)
    assert backend.nack(follow_up, error="no") is Settled.OK
    with pytest.raises(LeaseLost, match="not in flight"):
        ack(connection, backend.ticket(follow_up))


def test_an_answer_that_is_not_known_is_not_taken_for_a_success(
    rig: Rig, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = backend.ticket(new_lease(backend))
    monkeypatch.setattr(in_transaction, "_ask", lambda *_: [(ticket["home"], "z")])
    with pytest.raises(LeaseLost, match="has ended: z"):
        ack(rig.connect(), ticket)


def test_an_open_transaction_is_passed_by(rig: Rig, backend: PostgresBackend, connection: Connection) -> None:
    """Renewing waits for nobody, and nothing is lost; nor is anything reaped, or held up."""
    lease, other = new_lease(backend, ttl=0.5), new_lease(backend)
    quick = rig.open(timeout=1)
    ack(connection, backend.ticket(lease))
    started = Stopwatch()
    renewed, also = quick.renew_many([lease, other], 30.0)
    assert renewed is not None
    assert also is not None
    assert started.seconds() < 0.4
    wait_until(lambda: backend.stats(QUEUE).leased == 2 and started.elapsed() > 0.6, what="its time is over")
    assert quick.reap(QUEUE) == []
    assert quick.fetch(QUEUE) is None
    connection.commit()
    assert backend.ack(lease) is Settled.ALREADY
    assert backend.ack(other) is Settled.OK


def test_a_transaction_that_hangs_holds_up_no_settlement_of_others(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    """Its child was killed, say, and the server has not noticed yet."""
    stuck, other = new_lease(backend), new_lease(backend)
    ack(connection, backend.ticket(stuck))
    started = Stopwatch()
    answers = rig.open().settle_many([(stuck, Nack(0.0, "timeout")), (other, Ack())])
    assert started.seconds() < 1.5
    assert not answers[0]
    assert answers[1] is Settled.OK
    connection.rollback()
    assert backend.stats(QUEUE).leased == 1


def test_a_snapshot_that_is_older_than_the_lease_is_explained(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    lease = new_lease(backend)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    ack(connection, backend.ticket(lease))
    connection.rollback()
    connection.execute(f"INSERT INTO {rig.schema}.mine VALUES ('effect')")
    backend.renew(lease, 30.0)
    with pytest.raises(psycopg.errors.SerializationFailure) as caught:
        ack(connection, backend.ticket(lease))
    assert "level READ COMMITTED, or ack first" in caught.value.__notes__[0]
    connection.rollback()
    assert backend.ack(lease) is Settled.OK


SMALL = """
import sys, psycopg, jobpool.child.attempt
from pkgutil import resolve_name
resolve_name(sys.argv[1])
print(sorted(name for name in sys.modules if name.startswith(("jobpool_backends", "sqlite3", "redis"))))
"""


def test_a_child_that_acks_stays_small(backend: PostgresBackend) -> None:
    function = str(backend.ticket(new_lease(backend))["ack"])
    told = subprocess.run([sys.executable, "-c", SMALL, function], capture_output=True, text=True, check=True).stdout
    own = ["", ".postgres", ".postgres.in_transaction", ".shared"]
    assert told.strip() == str([f"jobpool_backends{name}" for name in own])
