"""Through a pgbouncer that lends sessions for one transaction at a time: everything works, and nothing is assumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from postgres_rig import Rig, together
from support.jobs import QUEUE, a_job, at, numbered
from support.servers import PostgresServer, shared_postgres
from support.servers.pgbouncer import Pgbouncer
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.broker.values import MessageFilter, Verb
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.guards import Begin, Begun, Guards, Hold, Rate
from jobpool.message.settlement import Ack, Move, Release, Settled
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.connection import Connection
from jobpool_backends.postgres.wait import UNNOTIFIED_LOOK_INTERVAL_S, channel

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


def test_places_are_kept_to_by_many_clients_of_four_sessions(rig: Rig, pooler: Pgbouncer) -> None:
    backends = [rig.open(base=pooler.url(), timeout=30) for _ in range(8)]
    backends[0].enqueue_many(numbered(80))
    guards = Guards(holds=(Hold("queue", 5),))
    granted: list[str] = []

    def begin(number: int) -> None:
        asked = [(lease, guards) for lease in backends[number].fetch_many(QUEUE, limit=10, ttl=300.0)]
        answers = backends[number].keys.begin_many(asked)
        granted.extend(lease.id for (lease, _), answer in zip(asked, answers, strict=True) if answer)

    together(8, begin)
    assert len(granted) == 5
    assert backends[0].keys.holders(QUEUE, "queue") == sorted(granted)


def test_a_thousand_messages_at_once(backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(1000))
    leases = backend.fetch_many(QUEUE, limit=1000)
    assert backend.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * 1000


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


def test_an_enqueue_is_found_half_a_second_late_at_most(rig: Rig, backend: PostgresBackend) -> None:
    producer = rig.open()
    with ThreadPoolExecutor(1) as threads:
        for rest in (0.0, 0.3, 0.8):
            assert backend.wait_any([QUEUE], rest) is None
            found = threads.submit(backend.wait_any, [QUEUE], 30.0)
            started = Stopwatch()
            producer.enqueue(a_job())
            assert found.result(10.0) == QUEUE
            assert started.seconds() < UNNOTIFIED_LOOK_INTERVAL_S + SLACK
            producer.fetch_many(QUEUE, limit=1)


def test_a_delay_is_slept_out_to_the_moment(backend: PostgresBackend) -> None:
    late = []
    for _ in range(3):
        due = time.time() + 0.3
        backend.enqueue(a_job(scheduled_at=at(due)))
        assert backend.wait_any([QUEUE], 30.0) == QUEUE
        late.append(time.time() - due)
        assert len(backend.fetch_many(QUEUE, limit=1)) == 1
    assert 0 <= min(late) < 0.05
    assert max(late) < UNNOTIFIED_LOOK_INTERVAL_S + SLACK


def test_nobody_lies_down_where_nothing_is_heard(rig: Rig, backend: PostgresBackend) -> None:
    assert backend.wait_any([QUEUE], 0.3) is None
    assert rig.ask("SELECT count(*) FROM {schema}.sleepers") == [(0,)]
    assert rig.ask("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'") == [(0,)]


def test_who_listens_directly_hears_who_enqueues_through_it(rig: Rig, backend: PostgresBackend) -> None:
    ear = rig.connect(autocommit=True)
    ear.execute(f'LISTEN "{channel(rig.schema)}"')
    backend.ping()
    rig.ask("INSERT INTO {schema}.sleepers VALUES (%s)", QUEUE)
    backend.enqueue(a_job())
    assert [heard.payload for heard in ear.notifies(timeout=10.0, stop_after=1)] == [QUEUE]


def test_it_is_told_at_the_start(backend: PostgresBackend) -> None:
    backend.ping()
    [caution] = [caution for caution in backend.cautions() if "pooler" in caution]
    assert "LISTEN hears nothing" in caution
    assert "set statement_timeout (3s)" in caution


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
        wait_until(lambda: works(backend), limit=5.0, what="work goes on")


def test_a_pooler_that_is_full_is_given_up_in_time(rig: Rig, tmp_path: Path) -> None:
    """All its sessions are held by transactions of others."""
    config = {"default_pool_size": "1"}
    with Pgbouncer(tmp_path, rig.server.url(), config=config) as pooler:
        holder, backend = rig.database(base=pooler.url()), rig.open(base=pooler.url(), timeout=0.5)
        backend.ping()
        inside, done = threading.Event(), threading.Event()

        def hold(link: Connection) -> None:
            link.execute("SELECT 1").fetchone()
            inside.set()
            done.wait(10.0)

        thread = threading.Thread(target=holder.transaction, args=(hold,))
        thread.start()
        assert inside.wait(10.0)
        started = Stopwatch()
        with pytest.raises(BackendUnavailable, match="does not answer: check the network"):
            backend.ping()
        assert started.seconds() < 0.5 + SLACK
        done.set()
        thread.join(10.0)
        backend.ping()


def test_what_it_refuses_is_explained(rig: Rig, pooler: Pgbouncer) -> None:
    database = rig.database(base=pooler.url(), options="-c work_mem=1MB")
    with pytest.raises(ConfigurationError, match=r"cannot be asked that: check the parameters in the URL .a pooler"):
        database.run("SELECT 1")


def works(backend: PostgresBackend) -> bool:
    try:
        backend.enqueue(a_job())
    except BackendUnavailable:
        return False
    return True
