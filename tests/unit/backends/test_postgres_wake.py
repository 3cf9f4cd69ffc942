"""Waiting: soon woken where LISTEN is heard, soon enough where it is not, and cheap."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest
from postgres_rig import Rig
from support.jobs import QUEUE, a_job, at
from support.servers import PostgresServer
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.broker.values import LOOK_INTERVAL_S, NewBatch
from jobpool.errors import BackendUnavailable
from jobpool.message.settlement import Settled
from jobpool_backends.postgres import PostgresBackend, wait
from jobpool_backends.postgres.wait import UNNOTIFIED_LOOK_INTERVAL_S, channel

SLACK = 0.5
"""Seconds that a busy machine may add."""


def asleep(rig: Rig, backend: PostgresBackend, *queues: str) -> Future[str | None]:
    """A thread that waits for these queues, and has lain down."""
    backend.ping()
    found = rig.submit(backend.wait_any, queues or (QUEUE,), 30.0)
    wait_until(lambda: {row[0] for row in rig.ask("SELECT queue FROM {schema}.sleepers")} >= set(queues or (QUEUE,)))
    return found


@pytest.fixture
def own(stack: ExitStack, tmp_path: Path) -> Rig:
    """On a server of its own."""
    return stack.enter_context(Rig(stack.enter_context(PostgresServer(tmp_path / "postgres"))))


def listeners(rig: Rig) -> list[int]:
    sql = "SELECT pid FROM pg_stat_activity WHERE query = %s"
    return [pid for (pid,) in rig.ask(sql, f'LISTEN "{channel(rig.schema)}"')]


def test_an_enqueue_wakes_at_once(rig: Rig) -> None:
    backend, producer = rig.open(), rig.open()
    delays = []
    for _ in range(15):
        found = asleep(rig, backend)
        started = time.monotonic()
        producer.enqueue(a_job())
        assert found.result(10.0) == QUEUE
        delays.append(time.monotonic() - started)
        assert len(producer.fetch_many(QUEUE, limit=5)) == 1
    assert sorted(delays)[7] < LOOK_INTERVAL_S / 10


def test_nobody_rings_while_nobody_sleeps(rig: Rig, backend: PostgresBackend) -> None:
    ear = rig.listen()
    backend.prepare()
    for _ in range(3):
        backend.enqueue(a_job())
    assert list(ear.notifies(timeout=0.1)) == []
    rig.ask("INSERT INTO {schema}.sleepers VALUES (%s)", QUEUE)
    for _ in range(3):
        backend.enqueue(a_job())
    heard = [*ear.notifies(timeout=30.0, stop_after=1), *ear.notifies(timeout=0.1)]
    assert [bell.payload for bell in heard] == [QUEUE]


def test_threads_that_wait_share_one_connection(rig: Rig) -> None:
    backend, producer = rig.open(), rig.open()
    queues = [f"queue-{number}" for number in range(6)]
    found = [asleep(rig, backend, queue) for queue in queues]
    assert len(listeners(rig)) == 1
    for queue, waiting in zip(reversed(queues), reversed(found), strict=True):
        started = Stopwatch()
        producer.enqueue(a_job(queue=queue))
        assert waiting.result(10.0) == queue
        assert started.seconds() < LOOK_INTERVAL_S + SLACK
    assert not any(waiting.running() for waiting in found)


def test_a_listening_connection_that_breaks_is_replaced(rig: Rig) -> None:
    backend, producer = rig.open(), rig.open()
    found = asleep(rig, backend)
    [old] = wait_until(lambda: listeners(rig))
    rig.ask("SELECT pg_terminate_backend(%s, 5000)", old)
    [new] = wait_until(lambda: listeners(rig), what="another connection listens")
    assert new != old
    producer.enqueue(a_job())
    assert found.result(10.0) == QUEUE


def test_what_came_while_nobody_listened_is_found(rig: Rig) -> None:
    backend, producer = rig.open(), rig.open()
    found = asleep(rig, backend)
    [old] = wait_until(lambda: listeners(rig))
    started = Stopwatch()
    rig.ask("SELECT pg_terminate_backend(%s)", old)
    producer.enqueue(a_job())
    assert found.result(10.0) == QUEUE
    assert started.seconds() < LOOK_INTERVAL_S + SLACK


def test_an_enqueue_that_saw_nobody_asleep_is_found_soon(rig: Rig) -> None:
    """It looked just before we lay down, and commits just after we looked; however quiet it was before."""
    backend, other = rig.open(), rig.connect()
    took = []
    for number in range(3):
        backend.wait_any([QUEUE], LOOK_INTERVAL_S + 0.1)
        rig.ask("DELETE FROM {schema}.sleepers")
        parameters = (f"late-{number}", QUEUE)
        other.execute(f"SELECT {rig.schema}.enqueue_one(%s, true, %s, 'report', 5::smallint, NULL, '')", parameters)
        found = asleep(rig, backend)
        started = time.monotonic()
        other.commit()
        assert found.result(10.0) == QUEUE
        took.append(time.monotonic() - started)
        assert len(backend.fetch_many(QUEUE, limit=1)) == 1
    assert min(took) < LOOK_INTERVAL_S / 5


def test_a_look_without_time_does_not_lie_down(rig: Rig, backend: PostgresBackend) -> None:
    """Else a real sleeper after it finds that somebody lay there, and waits longer for what enqueues did not see."""
    backend.wait_any([QUEUE], LOOK_INTERVAL_S + 0.1)
    rig.ask("DELETE FROM {schema}.sleepers")
    assert backend.wait_any([QUEUE], 0.0) is None
    assert rig.ask("SELECT count(*) FROM {schema}.sleepers") == [(0,)]


def test_to_lie_down_waits_for_no_disk(rig: Rig, backend: PostgresBackend) -> None:
    """After a crash nobody sleeps any more. For everything else the connection waits as before."""
    backend.wait_any([QUEUE], 0.0)
    [link] = backend._database._idle
    backend._waiter._look((QUEUE,), asleep=True)
    assert rig.ask("SELECT queue FROM {schema}.sleepers") == [(QUEUE,)]
    assert link.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_who_may_not_listen_finds_it_all_the_same(rig: Rig) -> None:
    backend, producer = rig.open(listen="no"), rig.open()
    found = rig.submit(backend.wait_any, [QUEUE], 30.0)
    assert not found.done()
    started = Stopwatch()
    producer.enqueue(a_job())
    assert found.result(10.0) == QUEUE
    assert started.seconds() < UNNOTIFIED_LOOK_INTERVAL_S + SLACK
    assert listeners(rig) == []


def test_where_no_connection_is_left_to_listen_on_it_looks_at_intervals(rig: Rig, role: str) -> None:
    rig.open().prepare()
    rig.ask(f'ALTER ROLE "{role}" CONNECTION LIMIT 1')
    rig.ask(f'GRANT ALL ON SCHEMA {{schema}} TO "{role}"; GRANT ALL ON ALL TABLES IN SCHEMA {{schema}} TO "{role}"')
    found = rig.submit(rig.open(base=rig.base(role)).wait_any, [QUEUE], 30.0)
    rig.open().enqueue(a_job())
    assert found.result(10.0) == QUEUE
    assert listeners(rig) == []


@pytest.mark.parametrize("listen", ["auto", "no"])
def test_a_delay_is_slept_out_to_the_moment(rig: Rig, listen: str) -> None:
    backend = rig.open(listen=listen)
    assert backend.wait_any([QUEUE], 0.7) is None  # so quiet that it looks seldom
    late = []
    for _ in range(3):
        due, watch = time.time() + 0.3, Stopwatch()
        backend.enqueue(a_job(scheduled_at=at(due)))
        assert backend.wait_any([QUEUE], 30.0) == QUEUE
        late.append(time.time() - due)
        assert late[-1] - watch.stalled() < LOOK_INTERVAL_S + SLACK
        assert len(backend.fetch_many(QUEUE, limit=1)) == 1
    assert 0 <= min(late) < 0.05


@pytest.mark.parametrize("listen", ["auto", "no"])
def test_an_idle_wait_asks_seldom(rig: Rig, listen: str) -> None:
    """As a pool waits: half a second at a time. Ten statements a second are all that the whole pool may send."""
    backend = rig.open(listen=listen)
    backend.wait_any([QUEUE], 0.7)
    asked = []
    run = backend._database.run

    def counted(*arguments: object, **options: object) -> object:
        asked.append(1)
        return run(*arguments, **options)  # type: ignore[arg-type]

    backend._database.run = counted  # type: ignore[method-assign, assignment]
    for _ in range(4):
        assert backend.wait_any([QUEUE], 0.5) is None
    assert len(asked) <= 10


def test_a_look_costs_little_though_its_first_were_at_empty_tables() -> None:
    """Neither autovacuum nor anybody else tells the server meanwhile that they have filled."""
    with Rig(new=True) as rig:
        backend = rig.open()
        backend.prepare()
        rig.ask("ALTER TABLE {schema}.messages SET (autovacuum_enabled = off)")
        rig.ask("VACUUM ANALYZE {schema}.messages")
        for _ in range(20):
            assert backend.wait_any([QUEUE], 0.0) is None
        rig.ask(
            "INSERT INTO {schema}.messages"
            " (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)"
            " SELECT 0, %s, 5, 1, false, false, number, 'reports', 'report', ''"
            " FROM generate_series(1, 100000) AS number",
            2**60,
        )
        took = []
        for _ in range(10):
            started = time.monotonic()
            assert backend.wait_any([QUEUE], 0.0) is None
            took.append(time.monotonic() - started)
        assert min(took) < 0.005


def test_bells_that_bring_nothing_are_answered_with_patience(rig: Rig) -> None:
    """Others take every message: this one must not look, and ring, a thousand times a second."""
    backend = rig.open()
    backend.prepare()

    def fetched() -> bool:
        while not backend.fetch_many(QUEUE, limit=1):
            backend.wait_any([QUEUE], 30.0)
        return True

    found = rig.submit(fetched)
    wait_until(lambda: bool(rig.ask("SELECT queue FROM {schema}.sleepers")))
    bell = rig.connect(autocommit=True)
    rung, give_up = 0, time.monotonic() + 0.5
    while time.monotonic() < give_up:
        rung += len(
            rig.within(bell, "DELETE FROM {schema}.sleepers RETURNING pg_notify(%s, queue)", channel(rig.schema))
        )
    assert rung < 200
    assert not found.done()
    rig.open().enqueue(a_job())
    assert found.result(10.0)


def test_who_is_notified_in_a_quiet_time_does_not_look_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = rig.open()
    found = asleep(rig, backend, "mails", QUEUE)
    monkeypatch.setattr(backend._waiter, "_look", lambda *_, **__: (None, 30.0))  # no look finds anything
    rig.open().enqueue(a_job())
    assert found.result(10.0) == QUEUE


def test_who_found_what_it_was_notified_of_does_not_look_the_next_time_either(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, producer = rig.open(), rig.open()
    monkeypatch.setattr(wait, "_HOPEFUL_S", 60.0)
    for _ in range(3):
        found = asleep(rig, backend)
        with monkeypatch.context() as blind:
            blind.setattr(backend._waiter, "_look", lambda *_, **__: (None, 30.0))  # no look finds anything
            producer.enqueue(a_job())
            assert found.result(10.0) == QUEUE
        assert len(backend.fetch_many(QUEUE, limit=2)) == 1


@pytest.mark.parametrize("listen", ["auto", "no"])
def test_closing_ends_the_wait_and_leaves_no_connection(rig: Rig, listen: str) -> None:
    backend = rig.open(listen=listen, application_name=rig.schema)
    found = [rig.submit(backend.wait_any, [queue], 30.0) for queue in ("one", "two", "three")]
    wait_until(lambda: all(waiting.running() for waiting in found))
    wait_until(lambda: listen == "no" or listeners(rig), what="one listens")
    started = Stopwatch()
    backend.close()
    for waiting in found:
        assert waiting.exception(10.0) is not None or waiting.result() is None
    assert started.seconds() < LOOK_INTERVAL_S + SLACK
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    wait_until(lambda: rig.ask(count, rig.schema) == [(0,)], what="no connection is left")


def test_a_server_that_goes_away_is_told_and_heard_again_when_it_is_back(own: Rig) -> None:
    backend, producer = own.open(timeout=1), own.open()
    found = asleep(own, backend)
    own.server.kill()
    error = found.exception(10.0)
    assert isinstance(error, BackendUnavailable)
    assert f"127.0.0.1:{own.server.port}" in str(error)
    own.server.start()
    found = asleep(own, backend)
    wait_until(lambda: listeners(own), limit=10.0, what="it listens again")
    producer.enqueue(a_job())
    assert found.result(10.0) == QUEUE


def test_a_server_that_stands_still_is_told_in_time(own: Rig) -> None:
    backend = own.open(timeout=0.5)
    found = asleep(own, backend)
    own.server.pause()
    started = Stopwatch()
    assert isinstance(found.exception(10.0), BackendUnavailable)
    assert started.seconds() < LOOK_INTERVAL_S + 0.5 + SLACK
    own.server.resume()
    own.open().enqueue(a_job())
    assert own.submit(backend.wait_any, [QUEUE], 30.0).result(10.0) == QUEUE


def test_waiting_needs_no_thread_of_its_own(backend: PostgresBackend) -> None:
    before = threading.active_count()
    assert backend.wait_any([QUEUE], 0.05) is None
    assert threading.active_count() == before


def test_a_close_in_a_forked_child_leaves_the_parents_ear_open(rig: Rig) -> None:
    backend = rig.open()
    backend.wait_any([QUEUE], 0.5)
    ear = listeners(rig)
    if not (child := os.fork()):
        try:
            backend.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    found = asleep(rig, backend)
    rig.open().enqueue(a_job())
    assert found.result(10.0) == QUEUE
    assert listeners(rig) == ear != []


def test_a_sweep_forgets_waiters_for_jobs_that_have_ended(rig: Rig, backend: PostgresBackend) -> None:
    """They were killed, or woken for another job."""
    for number in range(3):
        backend.enqueue(a_job(number, identifier=f"job-{number}"))
    backend.batches.open(NewBatch("open"))
    rig.ask("INSERT INTO {schema}.sleepers SELECT unnest('{=job-0,=job-1,=job-2,=gone,=open,reports}'::text[])")
    lease, other = backend.fetch_many(QUEUE, limit=2)
    assert backend.ack(lease) is Settled.OK
    assert backend.abandon(other, "failed") is Settled.OK
    rig.ask("SELECT {schema}.sweep(9)")
    assert sorted(rig.ask("SELECT queue FROM {schema}.sleepers")) == [("=job-2",), ("=open",), ("reports",)]
