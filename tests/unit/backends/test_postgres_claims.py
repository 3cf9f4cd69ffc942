"""What the contract suite cannot see of claims on Postgres: other transactions, floors, bounds, bells, poolers."""

from __future__ import annotations

import random
import threading
from typing import Any

import psycopg
import pytest
from postgres_explained import explained
from postgres_rig import PATIENCE, Rig, together
from support.claims import AT_ONCE, claim, found, ids, post
from support.jobs import QUEUE, a_job, numbered
from support.waiting import wait_until

from jobpool.broker.claim_store import CLAIM_LIMIT, Deleted, HeldClaim
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import BackendUnavailable, ClaimNotFound, LeaseLost
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Nack, Release, Settlement
from jobpool_backends.postgres import PostgresBackend, claims, in_transaction
from jobpool_backends.postgres.schema import PAGE_BYTES, TIDY_LIMIT
from jobpool_torture.network import Proxy

Connection = psycopg.Connection[Any]

MINE = "0123456789abcdef" * 2


def lock(rig: Rig, connection: Connection, ident: str) -> None:
    """Have a message's row, until the transaction ends."""
    rig.within(connection, "SELECT 1 FROM {schema}.messages WHERE id = %s FOR UPDATE", ident)


@pytest.fixture
def impatient(rig: Rig, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long in vain."""
    del backend
    monkeypatch.setattr(claims, "BUSY_RETRY_S", 0.02)
    for name in ("lock_held", "delete_messages"):
        rig.rewrite(name, "500 milliseconds", "20 milliseconds")


def turn(rig: Rig, seconds: float) -> None:
    """Have the schema's clock go ahead by so much."""
    rig.ask(
        "CREATE OR REPLACE FUNCTION {schema}.moment() RETURNS bigint LANGUAGE sql VOLATILE"
        f" RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {round(seconds * 1e6)}"
    )


def finish(backend: PostgresBackend, limit: int = 20) -> list[str]:
    """Claim and delete until nothing is left."""
    seen: list[str] = []
    while held := backend.claims.claim(QUEUE, limit=limit, ttl=60.0, grace=60.0):
        done = ids(held.messages)
        assert set(backend.claims.delete_many(QUEUE, done, held.id)) == {Deleted.DONE}
        seen += done
    return seen


@pytest.mark.parametrize("kind", ["post", "job", "delayed", "of an ended claim"])
def test_what_somebody_has_a_hand_on_is_waited_for(
    rig: Rig,
    backend: PostgresBackend,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(claims, "BUSY_RETRY_S", 60.0)
    looks: list[object] = []
    is_busy = claims._is_busy
    monkeypatch.setattr(claims, "_is_busy", lambda rows: looks.append(rows) or is_busy(rows))
    if kind == "job":
        ident = backend.enqueue(a_job())
    else:
        [ident] = post(backend, delay=1.0 if kind == "delayed" else 0.0)
    if kind == "of an ended claim":
        claim(backend, ttl=60.0)
        turn(rig, 60.0)
    turn(rig, 100.0)
    lock(rig, connection, ident)
    late = rig.submit(claim, rig.open(timeout=PATIENCE))
    wait_until(lambda: len(looks) > 4, what="the claim meets it")
    connection.rollback()
    assert ids(late.result(10.0).messages) == [ident]


@pytest.mark.usefixtures("impatient")
def test_what_somebody_keeps_is_given_up(rig: Rig, backend: PostgresBackend, connection: Connection) -> None:
    [ident] = post(backend)
    lock(rig, connection, ident)
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0) is None
    assert backend.claims.pop(QUEUE, 1) == []
    assert backend.claims.delete_many(QUEUE, [ident]) == [Deleted.FORBIDDEN]
    [behind] = post(backend)
    assert ids(claim(backend).messages) == [behind]
    connection.rollback()
    assert ids(claim(backend).messages) == [ident]


def test_a_claim_that_is_repeated_while_the_first_is_under_way_is_the_same(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    known = post(backend, b"0", b"1")
    sql = "SELECT id FROM {schema}.check_out(%s, %s, 1, 60000000, 60000000, 0, 7)"
    assert rig.within(connection, sql, QUEUE, MINE) == [(known[0],)]
    repeated = rig.submit(claim, backend, 1, claim_id=MINE)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%check_out%%'"
    wait_until(lambda: bool(rig.ask(waiting)), what="it meets the first")
    connection.commit()
    assert ids(repeated.result(10.0).messages) == known[:1]
    assert found(backend, known[1]).claims == 0


def test_only_what_has_ended_is_ended(rig: Rig, backend: PostgresBackend) -> None:
    """Of two that made the same claim anew when it had ended, the second comes too late to end the old one."""
    known = post(backend, b"0", b"1")
    held = claim(backend)
    assert rig.ask("SELECT {schema}.end_claim(%s, %s, {schema}.moment())", QUEUE, held.id) == [(0,)]
    assert ids(backend.claims.get(QUEUE, held.id).messages) == known


@pytest.mark.usefixtures("impatient")
def test_the_end_and_a_renewal_never_both_happen(rig: Rig, backend: PostgresBackend, connection: Connection) -> None:
    """A renewal that began in time has the claim when its end comes."""
    known = post(backend, b"0", b"1")
    held = claim(backend, ttl=60.0)
    assert len(rig.within(connection, "SELECT id FROM {schema}.prolong_claim(%s, %s, 600000000, NULL)", QUEUE, held.id))
    turn(rig, 60.0)
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0) is None
    assert backend.reap(QUEUE) == []
    assert backend.claims.delete_many(QUEUE, known) == [Deleted.FORBIDDEN] * 2
    connection.commit()
    assert ids(backend.claims.get(QUEUE, held.id).messages) == known
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0) is None


def test_a_renewal_that_waits_for_the_end_is_too_late(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    [ident] = post(backend)
    held = claim(backend, ttl=60.0)
    turn(rig, 59.0)
    rig.within(connection, "SELECT {schema}.release_claim(%s, %s)", QUEUE, held.id)
    renewal = rig.submit(backend.claims.renew, QUEUE, held.id, ttl=600.0)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%prolong_claim%%'"
    wait_until(lambda: bool(rig.ask(waiting)), what="it meets the release")
    connection.commit()
    with pytest.raises(ClaimNotFound):
        renewal.result(10.0)
    assert found(backend, ident).state is State.WAITING


def a_claimed_job_and_post(backend: PostgresBackend) -> tuple[HeldClaim, str, str, JobLease]:
    """A claim with both, and the lost lease of the job."""
    job = backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=0.001)
    wait_until(lambda: bool(backend.reap(QUEUE, AT_ONCE)), what="the lease ends")
    [posted] = post(backend)
    return claim(backend, ttl=60.0), job, posted, lease


def test_a_handler_that_acks_too_late_locks_nothing(backend: PostgresBackend, connection: Connection) -> None:
    held, job, posted, lease = a_claimed_job_and_post(backend)
    with pytest.raises(LeaseLost):
        in_transaction.ack(connection, backend.ticket(lease))
    assert backend.claims.delete_many(QUEUE, [posted, job], held.id) == [Deleted.DONE] * 2
    connection.rollback()


@pytest.mark.usefixtures("impatient")
def test_who_has_locked_a_claimed_job_keeps_nobody_from_renewing(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    held, job, posted, _ = a_claimed_job_and_post(backend)
    lock(rig, connection, job)
    assert ids(backend.claims.renew(QUEUE, held.id, ttl=600.0).messages) == [job, posted]
    turn(rig, 120.0)
    assert backend.reap(QUEUE) == []
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0) is None
    assert ids(backend.claims.get(QUEUE, held.id).messages) == [job, posted]
    with pytest.raises(BackendUnavailable, match="could not lock a row or table in time"):
        backend.claims.delete_many(QUEUE, [posted, job], held.id)
    assert found(backend, posted).claim == held.id
    connection.rollback()
    assert backend.claims.delete_many(QUEUE, [posted, job], held.id) == [Deleted.DONE] * 2


@pytest.mark.usefixtures("impatient")
def test_what_a_release_cannot_free_is_free_as_soon_as_it_can(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    held, job, posted, _ = a_claimed_job_and_post(backend)
    lock(rig, connection, job)
    assert backend.claims.release(QUEUE, held.id) == 1
    assert backend.claims.list_claims(QUEUE) == []
    assert ids(claim(backend).messages) == [posted]
    post(backend)
    with pytest.raises(BackendUnavailable, match="could not put this transaction in an order"):
        claim(backend, claim_id=held.id)
    connection.rollback()
    assert ids(claim(backend, 1, claim_id=held.id).messages) == [job]


@pytest.mark.usefixtures("impatient")
def test_a_life_is_prolonged_or_the_renewal_says_that_it_is_not(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    [ident] = post(backend, life=60.0)
    held = claim(backend)
    before = found(backend, ident).ends_at
    lock(rig, connection, ident)
    with pytest.raises(BackendUnavailable, match="could not lock a row or table in time"):
        backend.claims.renew(QUEUE, held.id, ttl=3600.0)
    connection.rollback()
    assert (backend.claims.get(QUEUE, held.id).ttl, found(backend, ident).ends_at) == (300.0, before)
    [renewed] = backend.claims.renew(QUEUE, held.id, ttl=3600.0).messages
    assert renewed.ends_at is not None
    assert before is not None
    assert renewed.ends_at > before + 3000.0


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_threads_at_random_finish_each_message_once_and_never_lock_each_other_out(rig: Rig, isolation: str) -> None:
    backends = [rig.open(timeout=PATIENCE, isolation=isolation) for _ in range(6)]
    known = backends[0].enqueue_many(numbered(120)) + post(backends[0], *[b"x"] * 120)
    finished: list[str] = []
    dead_locks = rig.dead_locks()
    give_up = threading.Event()

    def work(number: int) -> None:
        backend, choice = backends[number], random.Random(number)
        while len(finished) < len(known) and not give_up.is_set():
            step = choice.choice([claim_some, claim_some, pop_some, fetch_some, tend])
            finished.extend(step(backend, choice))

    timer = threading.Timer(60.0, give_up.set)
    timer.start()
    together(6, work)
    timer.cancel()
    assert sorted(finished) == sorted(known)
    assert backends[0].claims.stats(QUEUE).total == 0
    assert rig.dead_locks() == dead_locks


def claim_some(backend: PostgresBackend, choice: random.Random) -> list[str]:
    claims = backend.claims
    held = claims.claim(QUEUE, limit=choice.randint(1, 8), ttl=60.0, grace=60.0, max_claims=10_000)
    if held is None:
        return []
    if choice.random() < 0.5:
        assert ids(claims.renew(QUEUE, held.id, ttl=120.0).messages) == ids(held.messages)
    done = [ident for ident in ids(held.messages) if choice.random() < 0.6]
    assert set(claims.delete_many(QUEUE, done, held.id)) <= {Deleted.DONE}
    left = [ident for ident in ids(held.messages) if ident not in done]
    assert ids(claims.get(QUEUE, held.id).messages) == left
    assert claims.delete_many(QUEUE, left) == [Deleted.FORBIDDEN] * len(left)
    assert claims.release(QUEUE, held.id) == len(left)
    return done


def pop_some(backend: PostgresBackend, choice: random.Random) -> list[str]:
    return ids(backend.claims.pop(QUEUE, choice.randint(1, 3)))


def fetch_some(backend: PostgresBackend, choice: random.Random) -> list[str]:
    leases = backend.fetch_many(QUEUE, limit=choice.randint(1, 8), ttl=60.0)
    ways: list[Settlement] = choice.choices([Ack(), Release(), Nack()], k=len(leases))
    assert all(backend.settle_many(list(zip(leases, ways, strict=True))))
    return [lease.id for lease, way in zip(leases, ways, strict=True) if isinstance(way, Ack)]


def tend(backend: PostgresBackend, choice: random.Random) -> list[str]:
    assert backend.reap(QUEUE) == []
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.RETRY) == 0
    backend.claims.list_free(QUEUE, claimed=choice.random() < 0.5)
    return []


def floors(rig: Rig) -> dict[int, int]:
    return dict(rig.ask("SELECT priority, floor FROM {schema}.heads"))


@pytest.mark.parametrize("kind", ["post", "job"])
def test_claiming_costs_the_same_while_a_long_transaction_keeps_the_past(kind: str) -> None:
    """A backup, say: no dead row and no index entry of one can be taken away meanwhile."""
    with Rig(new=True) as rig:
        backend, connection = rig.open(timeout=PATIENCE), rig.connect()
        backend.prepare()
        rig.ask("ALTER TABLE {schema}.messages SET (autovacuum_enabled = off)")
        if kind == "post":
            post(backend, *[b"x"] * 2500)
        else:
            backend.enqueue_many(numbered(2500))
        rig.lower_step(100)
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rig.within(connection, "SELECT count(*) FROM {schema}.messages")
        explainer = explained(rig)
        backend, costs = explainer.backend, []
        held: list[HeldClaim] = []
        for _ in range(120):
            costs.append(explainer.pages(lambda: held.append(claim(backend, 20)), alone=False))
            backend.claims.delete_many(QUEUE, ids(held[-1].messages), held[-1].id)
        early, late = min(costs[5:15]), max(costs[-10:])
        assert late < early * 1.5 + 200  # as many as the floor may be behind
        assert floors(rig)[-1 if kind == "post" else 5] > 1800


@pytest.mark.parametrize("kind", ["post", "job"])
def test_no_floor_hides_what_came_early_and_was_committed_late(
    rig: Rig, backend: PostgresBackend, connection: Connection, kind: str
) -> None:
    rig.lower_step(5)
    if kind == "post":
        sql = "SELECT {schema}.post(%s, '{late}', '{f}', ARRAY[''::bytea], ARRAY[NULL]::bigint[], '{0}')"
        rig.within(connection, sql, QUEUE)
        post(backend, *[b"x"] * 300)
    else:
        backend.enqueue_in(connection, [a_job(identifier="late")])
        backend.enqueue_many(numbered(300))
    for _ in range(14):
        held = claim(backend, 20)
        backend.claims.delete_many(QUEUE, ids(held.messages), held.id)
    connection.commit()
    assert ids(claim(backend, 1).messages) == ["late"]
    for _ in range(5):
        finish(backend, 2)
    assert backend.stats(QUEUE).posted + backend.stats(QUEUE).leased == 1


def test_a_posted_message_that_somebody_made_free_by_hand_is_found(rig: Rig, backend: PostgresBackend) -> None:
    [early, *_] = post(backend, b"x", b"x", b"x")
    held = claim(backend, 1)
    finish(backend)
    rig.ask("UPDATE {schema}.heads SET floor = 90")
    rig.ask("UPDATE {schema}.messages SET state = 4, claim = NULL WHERE id = %s", early)
    assert backend.claims.get(QUEUE, held.id).messages == ()
    assert ids(backend.claims.pop(QUEUE, 1)) == [early]


def test_a_fetch_goes_by_its_own_floors(rig: Rig, backend: PostgresBackend) -> None:
    rig.lower_step(5)
    post(backend, *[b"x"] * 60)
    finish(backend, 5)
    known = backend.enqueue_many([a_job(priority=priority) for priority in (0, 255, 5)])
    assert backend.wait_any([QUEUE], 0.0) == QUEUE
    assert ids(backend.fetch_many(QUEUE, limit=5)) == [known[0], known[2], known[1]]


def test_a_thousand_are_freed_or_killed_in_one_call_and_the_others_in_the_next(
    rig: Rig, backend: PostgresBackend
) -> None:
    backend.enqueue_many(numbered(TIDY_LIMIT + 100))
    for _ in range(TIDY_LIMIT // 20 + 5):
        claim(backend, 20)
    turn(rig, 400.0)
    assert backend.reap(QUEUE) == []
    assert backend.stats(QUEUE).waiting == TIDY_LIMIT
    assert len(rig.ask("SELECT 1 FROM {schema}.claims")) == 5
    assert backend.reap(QUEUE) == []
    assert (backend.stats(QUEUE).waiting, rig.ask("SELECT 1 FROM {schema}.claims")) == (TIDY_LIMIT + 100, [])
    assert backend.claims.claim(QUEUE, limit=20, ttl=60.0, grace=60.0, max_claims=1) is None
    assert backend.count(MessageFilter(reason=CLAIM_LIMIT)) == TIDY_LIMIT
    [good] = post(backend)
    held = claim(backend, 20, max_claims=1)
    assert (ids(held.messages), backend.stats(QUEUE).dead) == ([good], TIDY_LIMIT + 100)


def test_only_what_comes_before_the_last_that_is_wanted_dies(rig: Rig, backend: PostgresBackend) -> None:
    """Worn and good ones by turns, of each kind: in the order of the queue, as if they were looked at one by one."""
    for number in range(12):
        post(backend, b"x", ident=f"post-{number:02}")
        backend.enqueue(a_job(identifier=f"job-{number:02}"))
    rig.ask("UPDATE {schema}.messages SET claims = 3 WHERE seq % 3 <> 0")
    rig.ask("UPDATE {schema}.messages SET fresh = false WHERE state = 0 AND seq % 2 = 0")
    rig.ask("UPDATE {schema}.messages SET state = 7 WHERE state = 4 AND seq % 4 = 1")
    order = ids(backend.list_messages(MessageFilter(queue=QUEUE), limit=100))
    assert ids(claim(backend, 5, max_claims=3).messages) == order[2:15:3]
    dead = backend.list_messages(MessageFilter(states=(State.DEAD,)), limit=100)
    assert ids(dead) == [ident for place, ident in enumerate(order[:15]) if place % 3 != 2]


def test_a_page_of_free_messages_is_bounded_in_bytes(backend: PostgresBackend) -> None:
    known = post(backend, *[b"x" * 2**20] * 20)
    first = backend.claims.list_free(QUEUE, limit=1000)
    assert 1 < len(first) * 2**20 < PAGE_BYTES
    behind = backend.claims.list_free(QUEUE, limit=1000, after=first[-1].cursor)
    assert ids(first + behind) == known
    assert ids(backend.claims.list_free(QUEUE, limit=3, after=first[-1].cursor)) == known[len(first) :][:3]


def test_very_many_are_posted_all_or_none(rig: Rig, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpool_backends.postgres.enqueue._PIECE_MESSAGES", 10)
    known = post(backend, *[b"x"] * 35)
    assert ids(backend.claims.list_free(QUEUE)) == known
    rig.ask("ALTER TABLE {schema}.messages ADD CHECK (body <> 'bad')")
    with pytest.raises(psycopg.errors.CheckViolation):
        post(backend, *[b"x"] * 25, b"bad")
    assert backend.stats(QUEUE).posted == 35


def test_counts_that_are_kept_by_several_at_once_are_added_up(
    rig: Rig, backend: PostgresBackend, connection: Connection
) -> None:
    post(backend, b"0", b"1", life=60.0)
    turn(rig, 60.0)
    assert backend.claims.stats(QUEUE).expired == 2
    rig.within(connection, "SELECT 1 FROM {schema}.expiries FOR UPDATE")
    post(backend, b"2", life=60.0)
    turn(rig, 120.0)
    assert backend.claims.stats(QUEUE).expired == 3
    connection.rollback()
    assert rig.ask("SELECT count FROM {schema}.expiries ORDER BY count") == [(1,), (2,)]


@pytest.mark.parametrize("way", ["release", "end"])
def test_a_job_that_a_claim_gives_back_wakes_a_pool(rig: Rig, backend: PostgresBackend, way: str) -> None:
    backend.enqueue(a_job())
    held = claim(backend, ttl=60.0)
    ear = rig.listen()
    found_one = rig.submit(rig.open().wait_any, [QUEUE], 30.0)
    wait_until(lambda: bool(rig.ask("SELECT 1 FROM {schema}.sleepers")), what="the pool is asleep")
    if way == "release":
        backend.claims.release(QUEUE, held.id)
    else:
        turn(rig, 60.0)
        backend.reap(QUEUE)
    assert [heard.payload for heard in ear.notifies(timeout=10.0, stop_after=1)] == [QUEUE]
    assert found_one.result(10.0) == QUEUE


def test_a_plain_job_leaves_nothing_in_the_indexes_of_posts(rig: Rig, backend: PostgresBackend) -> None:
    """So its updates write no more than ever, whatever they change."""
    rig.ask("REINDEX TABLE {schema}.messages")  # other tests have left pages
    sql = "SELECT pg_relation_size(%s::regclass)"
    sizes = [rig.ask(sql, f'"{rig.schema}".messages_{name}') for name in ("posted", "later")]
    backend.enqueue_many([*numbered(40), a_job(scheduled_at=None, priority=0)])
    leases = backend.fetch_many(QUEUE, limit=40)
    backend.renew_many(leases, 60.0)
    backend.settle_many([(lease, (Nack(5.0), Ack(), Release())[place % 3]) for place, lease in enumerate(leases)])
    assert [rig.ask(sql, f'"{rig.schema}".messages_{name}') for name in ("posted", "later")] == sizes
    post(backend, delay=5.0)
    assert [rig.ask(sql, f'"{rig.schema}".messages_{name}') for name in ("posted", "later")] != sizes


def test_a_pop_whose_connection_breaks_is_not_done_again(rig: Rig) -> None:
    """What it took may be gone; a second one would take more."""
    with Proxy(rig.server.host, rig.server.port) as proxy:
        backend = rig.open(base=f"postgresql://postgres@{proxy.host}:{proxy.port}/postgres")
        post(backend, b"0", b"1", b"2")
        proxy.drop_replies(1)
        with pytest.raises(BackendUnavailable, match="closed the connection"):
            backend.claims.pop(QUEUE, 1)
        left = ids(backend.claims.list_free(QUEUE))
        assert len(left) == 2
        proxy.cut()  # while the connection is idle
        assert ids(backend.claims.pop(QUEUE, 1)) == left[:1]
