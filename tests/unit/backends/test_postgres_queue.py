"""What the contract suite cannot see of the Postgres backend: other transactions, floors, bulk, odd texts."""

from __future__ import annotations

import random
import threading
import time
from typing import Any, cast

import psycopg
import pytest
from postgres_explained import explained
from postgres_rig import PATIENCE, Rig, together
from support.jobs import QUEUE, a_job, at, new_lease, new_leases, numbered
from support.waiting import wait_until

from jobpool.broker.values import MessageFilter, ReapPolicy, State, Verb
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.postgres import PostgresBackend, enqueue, inspect, schema
from jobpool_backends.postgres import leases as leases_module
from jobpool_backends.postgres.schema import PROMOTE_LIMIT

Connection = psycopg.Connection[Any]


def payloads(leases: list[JobLease]) -> list[object]:
    return [lease.envelope.payload for lease in leases]


def drain(backend: PostgresBackend, queue: str = QUEUE) -> list[object]:
    """Fetch and ack until nothing is left."""
    seen: list[object] = []
    while leases := backend.fetch_many(queue, limit=200):
        assert all(backend.settle_many([(lease, Ack()) for lease in leases]))
        seen += payloads(leases)
    return seen


def work_off(backend: PostgresBackend, *, times: int, limit: int) -> None:
    """Fetch and ack so many at a time."""
    for _ in range(times):
        backend.settle_many([(lease, Ack()) for lease in backend.fetch_many(QUEUE, limit=limit)])


def be_patient(rig: Rig) -> None:
    """Let a settlement wait for a row as long as it takes, so that a slow machine sees it wait."""
    rig.rewrite("settle", "500 milliseconds", "60 seconds")


def test_a_settlement_that_is_repeated_while_the_first_is_under_way_is_answered_already(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    be_patient(rig)
    first, second = new_leases(backend, 2)
    sql = "SELECT {schema}.settle('c1', ARRAY[%s, %s], ARRAY[%s, %s]::bigint[], ARRAY[%s, %s]::bigint[])"
    tickets = [backend.ticket(lease) for lease in (first, second)]
    given = [ticket[name] for name in ("queue", "seq", "holder") for ticket in tickets]
    assert rig.within(connection, sql, *given) == [("oo",)]
    repeated = rig.submit(backend.settle_many, [(first, Ack()), (second, Ack())], "c1")
    wait_until(
        lambda: rig.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"), what="it meets the first"
    )
    connection.commit()
    assert repeated.result(10.0) == [Settled.ALREADY, Settled.ALREADY]


def test_a_fetch_that_is_repeated_while_the_first_is_under_way_returns_the_same(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    backend.enqueue_many(numbered(6))
    sql = "SELECT id FROM {schema}.lease(%s, 3, 30000000, 'f1', 77)"
    first = rig.within(connection, sql, QUEUE)
    repeated = rig.submit(backend.fetch_many, QUEUE, limit=3, fetch_id="f1")
    wait_until(lambda: rig.ask("SELECT 1 FROM pg_locks WHERE NOT granted"), what="it meets the first")
    connection.commit()
    leases = repeated.result(10.0)
    assert {(lease.id,) for lease in leases} == {*first}, "which come in any order"
    assert backend.stats(QUEUE).waiting == 3
    assert all(backend.ack(lease) for lease in leases)


def test_one_id_enqueued_twice_at_once_is_one_message(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    backend.enqueue_in(connection, [a_job("first", identifier="order-17")])
    second = rig.submit(backend.enqueue_many, [a_job("second", identifier="order-17")] * 60)
    wait_until(lambda: rig.ask("SELECT 1 FROM pg_locks WHERE NOT granted"), what="it meets the first")
    connection.commit()
    second.result(10.0)
    assert drain(backend) == ["first"]


def test_an_id_that_ends_while_it_is_enqueued_again_is_remembered(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    lease = new_lease(backend, identifier="order-17")
    ticket = backend.ticket(lease)
    sql = "SELECT {schema}.settle('c1', ARRAY[%s], ARRAY[%s]::bigint[], ARRAY[%s]::bigint[])"
    assert rig.within(connection, sql, ticket["queue"], ticket["seq"], ticket["holder"]) == [("o",)]
    one = rig.submit(backend.enqueue, a_job(identifier="order-17"))
    few = rig.submit(backend.enqueue_many, [a_job(identifier="order-17"), a_job("new")])
    many = rig.submit(backend.enqueue_many, [a_job(identifier="order-17"), *numbered(60)])
    wait_until(lambda: len(rig.ask("SELECT 1 FROM pg_locks WHERE NOT granted")) == 3, what="all three wait")
    connection.commit()
    for enqueued in (one, few, many):
        enqueued.result(10.0)
    assert len(drain(backend)) == 61
    assert backend.inspect("order-17") is None


_HELD_UP = """
CREATE FUNCTION {schema}.hold_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'held up' THEN
        PERFORM pg_advisory_xact_lock_shared(4711);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER hold_up BEFORE UPDATE ON {schema}.messages FOR EACH STATEMENT EXECUTE FUNCTION {schema}.hold_up()
"""


@pytest.mark.parametrize(("taken", "left"), [(3, [4, 5, 6]), (2, [3])], ids=["all", "some"])
def test_what_another_fetch_takes_between_look_and_lease_is_left_to_it_and_not_waited_for(
    rig: Rig, backend: PostgresBackend, connection: Connection, taken: int, left: list[int]
) -> None:
    slow = rig.open(application_name="held up")
    backend.enqueue_many(numbered(7))
    backend.ack(backend.fetch_many(QUEUE, limit=1)[0])  # the priority is known from now on
    slow.ping()
    rig.ask(_HELD_UP)
    holding = rig.connect()
    holding.execute("SELECT pg_advisory_xact_lock(4711)")
    held_up = rig.submit(slow.fetch_many, QUEUE, limit=3)
    wait_until(lambda: rig.ask("SELECT 1 FROM pg_locks WHERE NOT granted"), what="it has looked")
    sql = "SELECT id FROM {schema}.lease(%s, %s, 30000000, 'f1', 77)"
    assert len(rig.within(connection, sql, QUEUE, taken)) == taken
    holding.rollback()
    assert payloads(held_up.result(10.0)) == left
    connection.rollback()
    assert payloads(backend.fetch_many(QUEUE, limit=taken)) == list(range(1, taken + 1))


@pytest.mark.parametrize("fetch", ["take_leases(%s, 3, 30000000, 'f1', 77, true)", "lease(%s, 3, 30000000, 'f1', 77)"])
def test_a_fetch_that_has_not_ended_hides_only_what_it_took(
    rig: Rig, backend: PostgresBackend, connection: Connection, fetch: str
) -> None:
    backend.enqueue_many(numbered(9))
    backend.fetch_many(QUEUE, limit=1)
    rig.within(connection, f"SELECT id FROM {{schema}}.{fetch}", QUEUE)
    assert payloads(backend.fetch_many(QUEUE, limit=2)) == [4, 5]
    connection.rollback()
    assert payloads(backend.fetch_many(QUEUE, limit=9)) == [1, 2, 3, 6, 7, 8]


def test_a_renewal_waits_for_nobody_and_tells_the_deadline_that_stands(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    locked, free = new_leases(backend, 2, ttl=30.0)
    rig.within(connection, "SELECT FROM {schema}.messages WHERE id = %s FOR UPDATE", locked.id)
    kept, renewed = backend.renew_many([locked, free], 60.0)
    assert kept is not None
    assert kept.expires_at == locked.expires_at
    assert renewed is not None
    assert renewed.expires_at > free.expires_at + 20.0
    connection.rollback()
    assert backend.renew(kept, 60.0).expires_at > locked.expires_at + 20.0


def test_a_message_that_somebody_else_has_locked_is_not_reaped(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    locked, free = new_leases(backend, 2)
    backend.settle_many([(locked, Forfeit("x")), (free, Forfeit("x"))])
    rig.within(connection, "SELECT FROM {schema}.messages WHERE id = %s FOR UPDATE", locked.id)
    assert [reaped.id for reaped in backend.reap(QUEUE)] == [free.id]
    connection.rollback()
    assert [reaped.id for reaped in backend.reap(QUEUE)] == [locked.id]


def test_a_settlement_waits_for_a_renewal_that_is_under_way(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    be_patient(rig)
    leases = new_leases(backend, 3)
    rig.within(connection, "SELECT FROM {schema}.messages FOR UPDATE")
    settled = rig.submit(backend.settle_many, [(leases[0], Ack()), (leases[1], Nack()), (leases[2], Abandon("x"))])
    wait_until(lambda: rig.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"), what="it waits")
    connection.rollback()
    assert settled.result(10.0) == [Settled.OK] * 3


def test_a_message_that_changed_after_somebody_looked_is_left_alone(backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(3))
    inspector = cast(inspect.Inspector, backend._inspector)
    found = list(inspector.search(MessageFilter(queue=QUEUE), limit=3))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.release(lease)
    assert inspector._change(Verb.DELETE, found) == 2
    assert [message.id for message in backend.list_messages()] == [lease.id]


@pytest.mark.parametrize("asked", ["a queue", "a text", "ids"])
def test_large_bodies_come_in_pieces_that_are_answered_in_time(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    idents = backend.enqueue_many([a_job("x" * 1_000_000) for _ in range(50)])
    run, sizes = backend._database.run, list[int]()

    def measured(*args: Any, **named: Any) -> list[tuple[Any, ...]]:
        rows = run(*args, **named)
        sizes.append(sum(len(value) for row in rows for value in row if isinstance(value, bytes)))
        return rows

    monkeypatch.setattr(backend._database, "run", measured)
    wheres = {
        "a queue": MessageFilter(queue=QUEUE),
        "a text": MessageFilter(text="xxx"),
        "ids": MessageFilter(ids=tuple(idents)),
    }
    found = backend.list_messages(wheres[asked], limit=1000)
    assert [message.id for message in found] == idents
    assert max(sizes) <= 20.1e6


def floors(rig: Rig) -> list[int]:
    return [floor for (floor,) in rig.ask("SELECT floor FROM {schema}.heads ORDER BY priority")]


def test_a_floor_follows_what_was_taken(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(6000))
    backend.enqueue_many(numbered(2, priority=1))
    work_off(backend, times=25, limit=200)
    assert floors(rig)[0] == 0
    assert 1000 < floors(rig)[1] < 5000
    assert len(drain(backend)) == 1002


def test_fetching_costs_the_same_while_a_long_transaction_keeps_the_past() -> None:
    """A backup, say: no dead row and no index entry of one can be taken away meanwhile."""
    with Rig(new=True) as rig:
        backend, connection = rig.open(timeout=PATIENCE), rig.connect()
        backend.prepare()
        rig.ask("ALTER TABLE {schema}.messages SET (autovacuum_enabled = off)")
        backend.enqueue_many(numbered(20_000))
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rig.within(connection, "SELECT count(*) FROM {schema}.messages")
        found = explained(rig)
        costs = []
        for _ in range(95):
            leases: list[JobLease] = []

            def fetch(leases: list[JobLease] = leases) -> None:
                leases += found.backend.fetch_many(QUEUE, limit=200)

            costs.append(found.pages(fetch, alone=False))
            found.backend.settle_many([(lease, Ack()) for lease in leases])
        early, late = min(costs[5:15]), max(costs[-10:])
        assert late < early * 1.5 + 1500  # as many as the floor may be behind


def test_no_floor_hides_what_was_enqueued_early_and_committed_late(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    rig.lower_step(5)
    backend.enqueue_in(connection, [a_job("late")])
    backend.enqueue_many(numbered(300))
    work_off(backend, times=20, limit=10)
    connection.commit()
    assert payloads(backend.fetch_many(QUEUE, limit=2)) == ["late", 200]


def test_no_floor_hides_what_a_fetch_gave_back_by_its_end(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    rig.lower_step(5)
    backend.enqueue_many(numbered(301))
    assert payloads(backend.fetch_many(QUEUE, limit=1)) == [0]
    rig.within(connection, "SELECT FROM {schema}.lease(%s, 3, 30000000, 'f1', 77)", QUEUE)
    work_off(backend, times=20, limit=10)
    connection.rollback()
    assert payloads(backend.fetch_many(QUEUE, limit=4)) == [1, 2, 3, 204]


def test_what_comes_back_has_its_old_place_below_the_floor(rig: Rig, backend: PostgresBackend) -> None:
    rig.lower_step(5)
    backend.enqueue_many(numbered(300))
    early = backend.fetch_many(QUEUE, limit=5)
    work_off(backend, times=20, limit=10)
    assert floors(rig)[0] > 100
    ways: list[Settlement] = [Release(), Nack(), Abandon("x"), Forfeit("x"), Nack(0.001)]
    backend.settle_many(list(zip(early, ways, strict=True)))
    backend.reap(QUEUE)
    backend.bulk(MessageFilter(queue=QUEUE), Verb.RETRY)
    wait_until(lambda: backend.stats(QUEUE).delayed == 0)
    assert payloads(backend.fetch_many(QUEUE, limit=6)) == [0, 1, 2, 3, 4, 205]


def test_a_message_that_somebody_made_wait_by_hand_is_found(rig: Rig, backend: PostgresBackend) -> None:
    rig.lower_step(5)
    backend.enqueue_many(numbered(100))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.abandon(lease, "x")
    work_off(backend, times=11, limit=10)
    rig.ask("UPDATE {schema}.heads SET floor = 90")
    rig.ask("UPDATE {schema}.messages SET state = 0, fresh = true, died_at = NULL, reason = NULL")
    assert backend.fetch_many(QUEUE, limit=1) == []
    rig.ask("UPDATE {schema}.heads SET reset_at = reset_at - 60000000")
    assert backend.fetch_many(QUEUE, limit=1) == []
    assert [found.id for found in backend.fetch_many(QUEUE, limit=1)] == [lease.id]


def test_floors_lose_nothing_whatever_commits_when(rig: Rig, backend: PostgresBackend) -> None:
    """Producers and consumers whose transactions last, or are rolled back, while the floor moves all the time."""
    rig.lower_step(1)
    over = time.monotonic() + 3.0
    enqueued: set[str] = set()
    acked: list[str] = []
    reached = [0]

    def goes_on() -> bool:
        """At the least until there was enough, and a floor has moved far: all go back once a minute."""
        late = time.monotonic() - over
        if late >= 0.0:
            reached.extend(floors(rig))
        return late < 0.0 or (late < 30.0 and (len(enqueued) <= 200 or max(reached) <= 50))

    def produce(number: int) -> None:
        chance = random.Random(number)
        with psycopg.connect(rig.server.url()) as connection:
            while goes_on():
                new = [a_job(priority=chance.choice([3, 5])) for _ in range(chance.randrange(1, 8))]
                ids = backend.enqueue_in(connection, new)
                time.sleep(chance.choice([0.0, 0.0, 0.001, 0.02]))
                if chance.random() < 0.2:
                    connection.rollback()
                    continue
                connection.commit()
                enqueued.update(ids)

    def consume(number: int) -> None:
        chance = random.Random(number)
        while goes_on():
            leases = backend.fetch_many(QUEUE, limit=chance.randrange(1, 12))
            ways: list[Settlement] = chance.choices([Ack(), Ack(), Ack(), Release()], k=len(leases))
            answers = backend.settle_many(list(zip(leases, ways, strict=True)))
            assert all(answers)
            acked.extend(lease.id for lease, way in zip(leases, ways, strict=True) if isinstance(way, Ack))

    def give_up(number: int) -> None:
        with psycopg.connect(rig.server.url()) as connection:
            while goes_on():
                rig.within(connection, "SELECT FROM {schema}.lease(%s, 5, 30000000, 'f', %s)", QUEUE, number)
                time.sleep(0.003)
                connection.rollback()

    together(6, lambda number: [produce, consume, consume, produce, give_up, produce][number](number))
    while leases := backend.fetch_many(QUEUE, limit=100):
        acked += [lease.id for lease in leases if backend.ack(lease)]
    assert len(enqueued) > 200
    assert len(acked) == len(set(acked))
    assert set(acked) == enqueued
    assert max(reached) > 50


def test_six_threads_at_random_lose_nothing_and_never_lock_each_other_out(backend: PostgresBackend) -> None:
    policy = ReapPolicy(max_crashes=0, back_off=0.0)
    over = time.monotonic() + 2.0
    known = backend.enqueue_many(numbered(300))
    held: list[JobLease] = []
    lock = threading.Lock()
    acked: list[str] = []

    def some(chance: random.Random) -> list[JobLease]:
        with lock:
            return chance.sample(held, min(len(held), chance.randrange(1, 40)))

    def fetch(chance: random.Random) -> None:
        leases = backend.fetch_many(QUEUE, limit=chance.randrange(1, 30), ttl=chance.choice([0.005, 0.05, 30.0]))
        with lock:
            held[:] = held[-200:] + leases

    def settle(chance: random.Random) -> None:
        leases = some(chance)
        ways = [chance.choice(SETTLEMENTS) for _ in leases]
        answers = backend.settle_many(list(zip(leases, ways, strict=True)))
        done = [lease.id for lease, way, answer in zip(leases, ways, answers, strict=True) if way == Ack() and answer]
        with lock:
            acked.extend(done)

    def renew(chance: random.Random) -> None:
        backend.renew_many(some(chance), 0.02)

    def tend(chance: random.Random) -> None:
        backend.reap(QUEUE, policy)
        backend.bulk(MessageFilter(queue=QUEUE), Verb.RETRY, limit=chance.randrange(1, 10))
        ids = [f"given-{number}" for number in range(10)]
        chance.shuffle(ids)
        backend.enqueue_many([a_job(identifier=ident) for ident in ids])

    def run(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < over:
            (fetch, settle, renew, tend, settle, tend)[number](chance)

    together(6, run)
    assert len(acked) == len(set(acked))
    left = {message.id for message in backend.list_messages(limit=1000)}
    assert set(known) - set(acked) == left & set(known)
    assert not left & set(acked)


SETTLEMENTS: list[Settlement] = [Ack(), Nack(0.0, "boom"), Nack(0.01), Abandon("x"), Release(), Forfeit("x")]


def test_a_second_job_of_an_id_is_left_out_with_the_first_of_another_piece(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue, "_PIECE_MESSAGES", 1)
    key: dict[str, Any] = {"unique": True, "idempotency_key": "order-17"}
    backend.enqueue(a_job(identifier="first", **key))
    assert backend.enqueue_many([a_job(identifier="again", **key), a_job(identifier="again")]) == ["first"] * 2
    assert backend.inspect("again") is None


def test_many_go_in_their_order_whatever_is_in_pieces(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, backend: PostgresBackend
) -> None:
    monkeypatch.setattr(enqueue, "_PIECE_MESSAGES", 70)
    known = backend.enqueue_many(numbered(500))
    assert [message.id for message in backend.list_messages(limit=1000)] == known
    monkeypatch.setattr(enqueue, "_PIECE_BYTES", 1000)
    backend.enqueue_many(numbered(100))
    assert drain(backend) == [*range(500), *range(100)]
    assert rig.ask("SELECT count(*) FROM {schema}.messages") == [(0,)]


def test_a_batch_that_fails_halfway_leaves_nothing(rig: Rig, backend: PostgresBackend) -> None:
    rig.ask("ALTER TABLE {schema}.messages ADD CONSTRAINT mine CHECK (handler <> 'odd')")
    with pytest.raises(psycopg.errors.CheckViolation):
        backend.enqueue_many([*numbered(100), a_job(handler="odd")])
    assert backend.stats(QUEUE).pending == 0


def test_what_falls_due_at_once_joins_in_pieces(rig: Rig, backend: PostgresBackend) -> None:
    count = PROMOTE_LIMIT * 2 + 100
    later = at(time.time() + 600)
    backend.enqueue_many(numbered(count, scheduled_at=later))
    backend.enqueue(a_job("urgent", priority=1))
    rig.ask("UPDATE {schema}.messages SET available_at = 1000000 + seq WHERE state = 1")
    assert (backend.stats(QUEUE).waiting, backend.stats(QUEUE).delayed) == (count + 1, 0)
    assert payloads(backend.fetch_many(QUEUE, limit=3)) == ["urgent", 0, 1]
    assert rig.ask("SELECT count(*) FROM {schema}.messages WHERE state = 1") == [(count - PROMOTE_LIMIT,)]
    assert drain(backend) == list(range(2, count))


def test_a_fetch_of_nothing_writes_nothing(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(3))
    drain(backend)
    backend.fetch_many(QUEUE, limit=5)

    def leave_no_trace() -> bool:
        [(place, number)] = rig.ask("SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot())")
        for _ in range(20):
            assert backend.fetch_many(QUEUE, limit=5) == []
            assert backend.reap(QUEUE) == []
        [(after, written)] = rig.ask(
            "SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn() - %s::pg_lsn", place
        )
        return bool(after == number and written < 2000)

    wait_until(leave_no_trace, what="nothing is written, but for what the autovacuum writes beside some")


def test_what_need_not_be_remembered_is_swept(rig: Rig, backend: PostgresBackend) -> None:
    rig.ask("INSERT INTO {schema}.calls SELECT 'old-' || n, n, 'o' FROM generate_series(1, 5000) n")
    rig.ask("INSERT INTO {schema}.ended SELECT 'old-' || n, n FROM generate_series(1, 3000) n")
    backend._database.next_sweep = 0.0
    left = []
    for _ in range(4):
        backend._database.sweep()
        left.append(rig.ask("SELECT (SELECT count(*) FROM {schema}.calls), (SELECT count(*) FROM {schema}.ended)")[0])
    assert left == [(3000, 1000), (1000, 0), (0, 0), (0, 0)]


def test_sweeping_goes_on_beside_the_calls(rig: Rig, backend: PostgresBackend) -> None:
    rig.ask("INSERT INTO {schema}.calls SELECT 'old-' || n, n, 'o' FROM generate_series(1, 5000) n")
    backend.enqueue_many(numbered(4))
    for _ in range(4):
        [lease] = backend.fetch_many(QUEUE, limit=1)
        backend.ack(lease)
    assert rig.ask("SELECT count(*) FROM {schema}.calls WHERE id LIKE 'old-%%' AND %s", True) == [(0,)]


@pytest.mark.parametrize("share", [7, 100, 20_000])
def test_a_filter_that_few_match_is_answered_in_order_and_whole(
    monkeypatch: pytest.MonkeyPatch, backend: PostgresBackend, share: int
) -> None:
    """Whatever number of messages each statement looks at."""
    monkeypatch.setattr(schema, "WINDOW", share)
    jobs = [
        a_job(number, queue=f"q{number % 3}", handler="rare" if number % 41 == 0 else "usual") for number in range(900)
    ]
    known = backend.enqueue_many(jobs)
    for queue in ("q0", "q2"):
        for lease in backend.fetch_many(queue, limit=100):
            backend.abandon(lease, "x")
    rare = known[::41]
    where = MessageFilter(handler="rare")
    assert [message.id for message in backend.list_messages(where)] == rare
    page = backend.list_messages(where, limit=5)
    rest = backend.list_messages(where, after=page[-1].cursor)
    assert [message.id for message in page + rest] == rare
    assert backend.count(where) == len(rare)
    assert backend.count(where, cap=4) == 4
    dead = MessageFilter(handler="rare", states=(State.DEAD,), text="RARE")
    count = backend.count(dead)
    assert 0 < count < len(rare)
    assert backend.bulk(dead, Verb.RETRY) == count
    assert backend.count(MessageFilter(states=(State.DEAD,))) == 200 - count


def test_a_search_path_of_somebody_elses_changes_nothing(rig: Rig, backend: PostgresBackend) -> None:
    rig.ask("CREATE SCHEMA {schema}_x".replace("{schema}", rig.schema))
    try:
        rig.ask(f"CREATE TABLE {rig.schema}_x.messages (nothing int)")
        other = rig.open(timeout=PATIENCE, options=f"-c search_path={rig.schema}_x")
        other.enqueue_many(numbered(3))
        assert drain(backend) == [0, 1, 2]
    finally:
        rig.ask(f"DROP SCHEMA {rig.schema}_x CASCADE")


def bury(backend: PostgresBackend, count: int) -> list[JobLease]:
    leases = new_leases(backend, count)
    assert set(backend.settle_many([(lease, Abandon("failed")) for lease in leases])) == {Settled.OK}
    return leases


def test_a_cap_that_is_set_late_is_reached_piece_by_piece(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(rig.open(), 40)
    monkeypatch.setattr(leases_module, "_EVICT_BATCH_MESSAGES", 3)
    capped = rig.open(dead_max=4)
    capped.reap(QUEUE)
    assert (capped.stats(QUEUE).dead, capped.evicted(QUEUE)) == (25, 15)
    while capped.stats(QUEUE).dead > 4:
        capped.reap(QUEUE)
    assert capped.evicted(QUEUE) == 36


def test_several_pools_that_evict_at_once_count_each_letter_once(rig: Rig) -> None:
    bury(rig.open(), 300)
    pools = [rig.open(dead_max=10, timeout=30) for _ in range(6)]
    together(6, lambda number: pools[number].reap(QUEUE))
    pools[0].reap(QUEUE)
    assert (pools[0].stats(QUEUE).dead, pools[0].evicted(QUEUE)) == (10, 290)


def test_an_eviction_that_fails_does_not_hide_the_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = rig.open(dead_max=1)
    leases = new_leases(backend, 2)

    def fail(*_: object) -> None:
        raise BackendUnavailable("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(backend._leases, "_shorten", fail)
        assert backend.settle_many([(lease, Abandon("failed")) for lease in leases]) == [Settled.OK] * 2
    assert backend.stats(QUEUE).dead == 2
    backend.reap(QUEUE)
    assert backend.stats(QUEUE).dead == 1


def test_a_count_over_many_queues_takes_few_statements(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = rig.open()
    backend.enqueue_many([a_job(queue=f"q{place}") for _ in range(10) for place in range(10)])
    rig.rewrite("look_through", "20000", "20")
    asked = []
    run = backend._database.run
    monkeypatch.setattr(backend._database, "run", lambda *what, **how: asked.append(1) or run(*what, **how))
    assert backend.count(MessageFilter(), cap=1000) == 100
    assert len(asked) <= 2


def test_as_many_crashes_are_allowed_as_anybody_writes(rig: Rig) -> None:
    assert rig.open().reap(QUEUE, ReapPolicy(max_crashes=2**40)) == []


def test_arrays_are_read_as_they_are_meant_under_array_nulls_off(rig: Rig) -> None:
    backend = rig.open(options="-c array_nulls=off")
    idents = backend.enqueue_many(numbered(3))
    later = backend.enqueue_many([a_job(scheduled_at=at(time.time() + 9), idempotency_key="NULL", batch=None)] * 2)
    leases = backend.fetch_many(QUEUE, limit=3)
    assert [lease.id for lease in leases] == idents
    answers = backend.settle_many([(leases[0], Nack()), (leases[1], Abandon("failed")), (leases[2], Release())])
    assert answers == [Settled.OK] * 3
    errors = {message.last_error for message in backend.list_messages()}
    assert (errors, backend.stats(QUEUE).delayed) == ({None}, len(later))
