"""Through a pgbouncer that lends sessions for one transaction at a time: everything works, and nothing is assumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_rig import Rig, together
from support.claims import a_post, claim, ids
from support.jobs import QUEUE, a_job, at, numbered
from support.servers import PostgresServer, shared_postgres
from support.servers.pgbouncer import Pgbouncer
from support.stalls import Stopwatch
from support.waiting import patiently

from jobpool.broker.claim_store import Deleted
from jobpool.broker.finding import Level, cautions_of
from jobpool.broker.values import MessageFilter, Verb
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.guards import Begin, Begun, Guards, Hold, Rate
from jobpool.message.settlement import Ack, Move, Release, Settled
from jobpool_backends.postgres import PostgresBackend, enqueue
from jobpool_backends.postgres.checks import diagnose
from jobpool_backends.postgres.connection import Connection
from jobpool_backends.postgres.in_transaction import ack
from jobpool_backends.shared import micros

SLACK = 0.5
"""Seconds that a busy machine may add."""


@pytest.fixture(scope="module")
def pooler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pgbouncer]:
    with Pgbouncer(tmp_path_factory.mktemp("pooler"), shared_postgres().url()) as pooler:
        yield pooler


@pytest.fixture
def backend(rig: Rig, pooler: Pgbouncer) -> PostgresBackend:
    return rig.open(base=pooler.url())


def test_a_pooler_is_recognised_and_nothing_prepared(rig: Rig, pooler: Pgbouncer) -> None:
    direct, through = rig.database(), rig.database(base=pooler.url())
    for database in (direct, through):
        for _ in range(5):
            database.run("SELECT 'how often'")
    assert (direct.pooled, through.pooled) == (False, True)
    assert through.run("SELECT count(*) FROM pg_prepared_statements") == [(0,)]


def test_a_transaction_whose_lent_session_is_ended_is_done_again(rig: Rig, pooler: Pgbouncer) -> None:
    """The pooler then sends an error of the server's and one of its own, both in answer to the COMMIT or the COPY."""
    database = rig.database(base=pooler.url())
    database.run("SELECT 1")  # from here on there is an idle connection
    for copies in (False, True):
        ended: list[int] = []

        def work(connection: Connection, copies: bool = copies, ended: list[int] = ended) -> int:
            [(pid,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
            if not ended:
                ended.append(pid)
                rig.ask("SELECT pg_terminate_backend(%s, 5000)", pid)
            if copies:
                with connection.cursor().copy("COPY (SELECT 1) TO STDOUT") as copy:
                    assert len(list(copy)) == 1
            return int(pid)

        assert database.transaction(work) not in ended


def test_a_copy_whose_lent_session_is_ended_is_done_again(
    rig: Rig, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.ping()
    ended: list[object] = []

    def end_once(seconds: float) -> int:
        if not ended:
            found = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query LIKE %s"
            ended.extend(rig.ask(found, f'%COPY "{rig.schema}".messages%'))
        return micros(seconds)

    monkeypatch.setattr(enqueue, "micros", end_once)
    later = at(time.time() + 60)
    backend.enqueue_many([a_job(identifier=f"c{n}", scheduled_at=later) for n in range(enqueue.COPY_FROM)])
    assert ended == [(True,)]
    assert backend.stats(QUEUE).delayed == enqueue.COPY_FROM


def test_the_settings_of_a_lent_session_are_left_alone(rig: Rig, pooler: Pgbouncer) -> None:
    database = rig.database(base=pooler.url())
    assert database.run("SHOW statement_timeout") == [("0",)]


def test_the_life_of_a_message(backend: PostgresBackend) -> None:
    """Often enough that anything prepared would be met again in a session of another."""
    for _ in range(10):
        known = backend.enqueue_many(numbered(5))
        leases = backend.fetch_many(QUEUE, limit=5)
        assert [lease.id for lease in leases] == known
        assert all(backend.renew_many(leases, 30.0))
        assert backend.nack(leases[0], error="again") is Settled.OK
        assert backend.release(leases[1]) is Settled.OK
        assert backend.abandon(leases[2], "failed") is Settled.OK
        assert backend.forfeit(leases[3], "SIGSEGV") is Settled.OK
        assert len(backend.reap(QUEUE)) == 1
        assert backend.ack(leases[4]) is Settled.OK
        assert backend.ack(leases[4]) is Settled.ALREADY
        assert backend.bulk(MessageFilter(), Verb.RETRY) == 1
        stats = backend.stats(QUEUE)
        assert (stats.waiting + stats.delayed, stats.leased, stats.dead) == (4, 0, 0)
        assert {message.id for message in backend.list_messages()} == set(known[:4])
        assert backend.bulk(MessageFilter(), Verb.DELETE) == 4


def test_the_life_of_a_guarded_message(backend: PostgresBackend) -> None:
    """Often enough, again."""
    keys = backend.keys
    for number in range(10):
        key = f"order-{number}"
        known = backend.enqueue(a_job(unique=True, idempotency_key=key))
        assert backend.enqueue_many([a_job(unique=True, idempotency_key=key)]) == [known]
        backend.enqueue_many(numbered(2))
        first, second, third = backend.fetch_many(QUEUE, limit=3)
        guards = Guards(key=key, holds=(Hold("queue", 1),), rates=(Rate("queue", 1000),))
        assert keys.begin_many([(first, guards), (second, guards)]) == [Begun(Begin.GRANTED), Begun(Begin.HELD, key)]
        assert keys.holders(QUEUE, "queue") == [known]
        assert backend.settle_many([(first.guarded(guards), Ack((a_job("next"),)))]) == [Settled.OK]
        assert keys.begin_many([(second, guards)]) == [Begun(Begin.DONE, key)]
        assert backend.settle_many([(second.guarded(guards), Release(begun=False))]) == [Settled.OK]
        assert backend.settle_many([(third, Move("mails"))]) == [Settled.OK]
        assert keys.forget(QUEUE, key)
        assert keys.first_run(QUEUE, key)
        keys.put_records("pools", {key: b"x"}, 60.0)
        keys.append_log("history", [("nightly", key.encode())], 5)
        assert backend.bulk(MessageFilter(), Verb.DELETE) == 3
    assert len(keys.list_records("pools")) == 10
    assert keys.read_log("history", "nightly", limit=1) == [b"order-9"]


def test_the_life_of_a_claim(backend: PostgresBackend) -> None:
    claims = backend.claims
    for number in range(6):
        job = backend.enqueue(a_job())
        known = claims.post(QUEUE, [a_post(b"%d" % number, life=100.0), a_post()])
        held = claim(backend, max_claims=5)
        assert ids(held.messages) == [job, *known]
        assert ids(claims.renew(QUEUE, held.id, ttl=60.0).messages) == [job, *known]
        assert claims.delete_many(QUEUE, known[:1], held.id) == [Deleted.DONE]
        assert [listed.count for listed in claims.list_claims(QUEUE)] == [2]
        assert ids(claims.get(QUEUE, held.id).messages) == [job, known[1]]
        assert claims.release(QUEUE, held.id) == 2
        assert claims.stats(QUEUE).free == 2
        assert ids(claims.list_free(QUEUE)) == [job, known[1]]
        assert ids(claims.pop(QUEUE, 5)) == [job, known[1]]


def test_an_enqueue_and_an_ack_in_a_transaction_of_the_callers(backend: PostgresBackend, pooler: Pgbouncer) -> None:
    with psycopg.connect(pooler.url(), prepare_threshold=None) as connection:
        for _ in range(10):
            backend.enqueue_in(connection, [a_job()])
            connection.commit()
            [lease] = backend.fetch_many(QUEUE, limit=1)
            ack(connection, backend.ticket(lease))
            connection.commit()
            assert backend.ack(lease) is Settled.ALREADY


def test_transactions_of_several_statements_are_not_torn_apart(rig: Rig, pooler: Pgbouncer) -> None:
    database = rig.database(base=pooler.url())
    database.run(f"CREATE TABLE {rig.schema}.numbers (value int)")
    database.run(f"INSERT INTO {rig.schema}.numbers VALUES (0)")

    def add(link: Connection) -> None:
        [(value,)] = link.execute(f"SELECT value FROM {rig.schema}.numbers FOR UPDATE").fetchall()
        link.execute(f"UPDATE {rig.schema}.numbers SET value = %s", [value + 1])

    together(8, lambda _: [database.transaction(add) for _ in range(10)])
    assert database.run(f"SELECT value FROM {rig.schema}.numbers") == [(80,)]


def test_many_clients_share_four_sessions(rig: Rig, pooler: Pgbouncer) -> None:
    backends = [rig.open(base=pooler.url()) for _ in range(8)]
    backends[0].enqueue_many(numbered(200))
    seen: list[str] = []

    def drain(number: int) -> None:
        while leases := backends[number].fetch_many(QUEUE, limit=7):
            assert all(backends[number].settle_many([(lease, Ack()) for lease in leases]))
            seen.extend(lease.id for lease in leases)

    together(8, drain)
    assert len(seen) == len(set(seen)) == 200


def test_nobody_lies_down_where_nothing_is_heard(rig: Rig, backend: PostgresBackend) -> None:
    assert backend.wait_any([QUEUE], 0.3) is None
    assert rig.ask("SELECT count(*) FROM {schema}.sleepers") == [(0,)]
    assert rig.ask("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'") == [(0,)]


def test_who_listens_directly_hears_who_enqueues_through_it(rig: Rig, backend: PostgresBackend) -> None:
    ear = rig.listen()
    backend.ping()
    rig.ask("INSERT INTO {schema}.sleepers VALUES (%s)", QUEUE)
    backend.enqueue(a_job())
    assert [heard.payload for heard in ear.notifies(timeout=10.0, stop_after=1)] == [QUEUE]


def test_it_is_told_at_the_start(backend: PostgresBackend) -> None:
    backend.ping()
    [caution] = [caution for caution in cautions_of(backend.diagnose()) if "pooler" in caution]
    assert "LISTEN hears nothing" in caution
    assert "set statement_timeout (3s)" in caution


def test_a_pooler_whose_sessions_have_limits_is_but_noted(rig: Rig, tmp_path: Path) -> None:
    with Pgbouncer(tmp_path, rig.server.url(), config={"default_pool_size": "1"}) as pooler:
        database = rig.database(base=pooler.url())
        for setting, level in (
            ("statement_timeout", Level.WARNING),
            ("idle_in_transaction_session_timeout", Level.NOTE),
        ):
            database.run(f"SET {setting} = '3s'")  # in the one session there is
            [finding] = [finding for finding in diagnose(database) if finding.check == "postgres.pooler"]
            assert finding.level is level
            assert bool(finding.mend) is finding.is_bad


def test_an_end_of_the_pooler_is_an_outage_and_no_more(rig: Rig, tmp_path: Path) -> None:
    with Pgbouncer(tmp_path, rig.server.url()) as pooler:
        backend = rig.open(base=pooler.url())
        backend.enqueue(a_job())
        pooler.restart()
        assert backend.stats(QUEUE).waiting == 1
        pooler.stop()
        with pytest.raises(BackendUnavailable, match=f"127.0.0.1:{pooler.port} .* refuses connections"):
            backend.enqueue(a_job())
        pooler.start()
        backend.enqueue(a_job())


def test_a_server_that_restarts_behind_it_is_an_outage_and_no_more(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server, Pgbouncer(tmp_path, server.url()) as pooler, Rig(server) as rig:
        backend = rig.open(base=pooler.url(), timeout=1)
        backend.enqueue(a_job())
        server.kill()
        with pytest.raises(BackendUnavailable):
            backend.enqueue(a_job())
        server.start()
        patiently(lambda: backend.enqueue(a_job()))


def test_a_pooler_that_is_full_is_given_up_in_time(rig: Rig, tmp_path: Path) -> None:
    """All its sessions are held by transactions of others."""
    with Pgbouncer(tmp_path, rig.server.url(), config={"default_pool_size": "1"}) as pooler:
        holder, backend = rig.database(base=pooler.url()), rig.open(base=pooler.url(), timeout=0.5)
        backend.ping()
        inside, done = threading.Event(), threading.Event()

        def hold(link: Connection) -> None:
            link.execute("SELECT 1").fetchone()
            inside.set()
            done.wait(10.0)

        held = rig.submit(holder.transaction, hold)
        assert inside.wait(10.0)
        started = Stopwatch()
        with pytest.raises(BackendUnavailable, match="does not answer: check the network"):
            backend.ping()
        assert started.seconds() < 0.5 + SLACK
        done.set()
        held.result(10.0)
        backend.ping()


def test_what_it_refuses_is_explained(rig: Rig, pooler: Pgbouncer) -> None:
    database = rig.database(base=pooler.url(), options="-c work_mem=1MB")
    with pytest.raises(ConfigurationError, match=r"cannot be asked that: check the parameters in the URL .a pooler"):
        database.run("SELECT 1")
