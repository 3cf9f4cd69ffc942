"""The key store among other transactions: who decides at the same time, and leases that end just now."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from postgres_rig import PATIENCE, Rig, together
from support.jobs import QUEUE, a_job, new_leases, numbered, unique
from support.looks import a_lease, begin
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable
from jobpool.message.guards import Begin, Begun, Guards, Hold, Rate
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.postgres import PostgresBackend, keys
from jobpool_backends.postgres.in_transaction import ack
from jobpool_backends.sql import number_of
from jobpool_torture.network import Proxy

LOCK = Guards(holds=(Hold("job:nightly"),))
KEY = Guards(key="order-17")

Connection = psycopg.Connection[Any]


def turns_waited_for(rig: Rig) -> int:
    [(count,)] = rig.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    return int(count)


def test_a_first_run_whose_answer_is_lost_raises_and_is_not_sent_again(rig: Rig) -> None:
    with Proxy(rig.server.host, rig.server.port) as proxy:
        backend = rig.open(base=f"postgresql://postgres@{proxy.host}:{proxy.port}/postgres")
        assert backend.keys.first_run(QUEUE, "order-16")
        proxy.drop_replies(1)
        with pytest.raises(BackendUnavailable):
            backend.keys.first_run(QUEUE, "order-17")


@pytest.mark.parametrize(
    ("guards", "answer"),
    [
        (KEY, Begin.HELD),
        (LOCK, Begin.HELD),
        (Guards(holds=(Hold("queue", 1),), rates=(Rate("queue", 1),)), Begin.HELD),
        (Guards(rates=(Rate("queue", 1),)), Begin.LIMITED),
    ],
    ids=["key", "lock", "place", "rate"],
)
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_who_waited_for_another_sees_what_that_one_was_granted(
    rig: Rig, backend: PostgresBackend, guards: Guards, answer: Begin, isolation: str
) -> None:
    """The second has begun before the first commits: what it saw at its beginning is out of date."""
    late = rig.open(timeout=PATIENCE, isolation=isolation)
    first, second = new_leases(backend, 2)
    late.ping()
    with rig.connect() as connection:
        in_transaction(rig, connection, first, guards)
        waiting = rig.submit(begin, late, second, guards)
        wait_until(lambda: turns_waited_for(rig), what="the second waits for its turn")
        connection.commit()
        assert waiting.result(PATIENCE).answer is answer
    assert backend.keys.begin_many([(first, guards)]) == [Begun(Begin.GRANTED)]


def in_transaction(rig: Rig, connection: Connection, lease: JobLease, guards: Guards) -> None:
    """Grant these guards to a lease in a transaction that stays open."""
    sql = keys._BEGIN.replace("{schema}", f'"{rig.schema}"')
    [(letter, _, _)] = connection.execute(sql, keys._wanted([(lease, guards)])).fetchall()
    assert letter == "g"


def test_who_waited_gets_what_the_other_gave_up(rig: Rig, backend: PostgresBackend) -> None:
    first, second = new_leases(backend, 2)
    with rig.connect() as connection:
        in_transaction(rig, connection, first, LOCK)
        waiting = rig.submit(begin, backend, second, LOCK)
        wait_until(lambda: turns_waited_for(rig), what="the second waits for its turn")
        connection.rollback()
        assert waiting.result(PATIENCE)


def test_batches_in_any_order_neither_lock_up_nor_grant_too_much(rig: Rig, backend: PostgresBackend) -> None:
    """Eight at once, each with thirty leases that want some of the same names, shuffled."""
    before = rig.dead_locks()
    pools = [rig.open(timeout=PATIENCE) for _ in range(8)]
    mine = [new_leases(backend, 30) for _ in pools]
    granted: list[tuple[JobLease, Guards]] = []

    def ask(number: int) -> None:
        draw = random.Random(number)
        batch = [(lease, some_guards(draw)) for lease in mine[number]]
        draw.shuffle(batch)
        for piece in (batch[:10], batch[10:20], batch[20:]):
            answers = pools[number].keys.begin_many(piece)
            granted.extend(asked for asked, answer in zip(piece, answers, strict=True) if answer)

    together(8, ask)
    keys = [guards.key for _, guards in granted if guards.key]
    assert len(keys) == len(set(keys)) == 5
    for name in NAMES:
        held = [lease.id for lease, guards in granted if any(hold.name == name for hold in guards.holds)]
        assert sorted(held) == backend.keys.holders(QUEUE, name)
        assert len(held) == 3
    assert sum(bool(guards.rates) for _, guards in granted) == 20
    for pool in pools:
        pool.close()
    assert rig.dead_locks() == before


NAMES = [f"tenant-{number}" for number in range(4)]


def some_guards(draw: random.Random) -> Guards:
    return draw.choice(
        [
            Guards(key=f"order-{draw.randrange(5)}"),
            Guards(holds=(Hold(draw.choice(NAMES), 3),)),
            Guards(rates=(Rate("queue", 20, 3600.0),)),
        ]
    )


def test_no_batch_needs_more_locks_than_there_are_turns(rig: Rig, backend: PostgresBackend) -> None:
    asked = [(lease, Guards(key=f"order-{lease.id}")) for lease in new_leases(backend, 1000)]
    with rig.connect() as connection:
        connection.execute(keys._BEGIN.replace("{schema}", f'"{rig.schema}"'), keys._wanted(asked))
        [(held,)] = rig.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert 200 < held <= 256


def test_who_asks_for_another_name_waits_for_nobody(rig: Rig, backend: PostgresBackend) -> None:
    first, second = new_leases(backend, 2)
    with rig.connect() as connection:
        in_transaction(rig, connection, first, Guards(holds=(Hold("one"),)))
        quick = rig.open(timeout=1.0)
        assert begin(quick, second, Guards(holds=(Hold("two"),)))


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_stays_held_while_its_ack_is_under_way_though_the_deadline_has_passed(
    rig: Rig, backend: PostgresBackend, commits: bool
) -> None:
    """A handler's own transaction has acked in time, and commits late: until then nobody runs under its key."""
    [lease] = new_leases(backend, 1, ttl=1.0)
    [other] = new_leases(backend, 1)
    assert begin(backend, lease, KEY)
    with rig.connect() as connection:
        ack(connection, backend.ticket(lease.guarded(KEY)))
        wait_until(lambda: not backend.keys.holders(QUEUE, "key:order-17"), what="the deadline has passed")
        assert begin(backend, other, KEY) == Begun(Begin.HELD, "order-17")
        connection.commit() if commits else connection.rollback()
    assert begin(backend, other, KEY) == (Begun(Begin.DONE, "order-17") if commits else Begun(Begin.GRANTED))


def test_whoever_looks_finds_the_key_held_or_done_and_never_free(rig: Rig, backend: PostgresBackend) -> None:
    pools = [rig.open(timeout=PATIENCE) for _ in range(2)]
    holders, others = new_leases(backend, 60), new_leases(backend, 60)
    guards = [Guards(key=f"order-{number}") for number in range(60)]
    assert all(backend.keys.begin_many(list(zip(holders, guards, strict=True))))
    seen: list[Begin] = []

    def settle_or_look(number: int) -> None:
        for holder, other, key in zip(holders, others, guards, strict=True):
            if number:
                while (answer := begin(pools[1], other, key).answer) is not Begin.DONE:
                    seen.append(answer)
            else:
                assert pools[0].ack(holder.guarded(key))

    together(2, settle_or_look)
    assert set(seen) <= {Begin.HELD}


@pytest.mark.parametrize(("most", "room"), [(5, 3), (6, 4), (9, 6)])
def test_places_of_leases_that_have_ended_take_no_room_from_a_batch(
    backend: PostgresBackend, most: int, room: int
) -> None:
    """However many of them a call meets before it thinks that a name is full."""
    guards = Guards(holds=(Hold("queue", most),))
    ended, alive, wanting = new_leases(backend, 4), new_leases(backend, 2), new_leases(backend, 6)
    assert all(backend.keys.begin_many([(lease, Guards(holds=(Hold("queue", 9),))) for lease in ended + alive]))
    assert all(backend.settle_many([(lease, Ack()) for lease in ended]))
    answers = backend.keys.begin_many([(lease, guards) for lease in wanting])
    assert [bool(answer) for answer in answers] == [True] * room + [False] * (6 - room)


TABLES = ("uniques", "done", "holds", "starts", "records")


def rows(rig: Rig) -> dict[str, int]:
    return {table: rig.ask(f"SELECT count(*) FROM {{schema}}.{table}")[0][0] for table in TABLES}


def make_old(rig: Rig) -> None:
    for table in TABLES:
        rig.ask(f"UPDATE {{schema}}.{table} SET until = 1 WHERE until IS NOT NULL")


def use_everything(backend: PostgresBackend, count: int) -> list[JobLease]:
    """So many guarded jobs, of which every other is acked; the leases of the others."""
    backend.enqueue_many([a_job(unique=True, idempotency_key=f"order-{number}") for number in range(count)])
    guards = [Guards(key=f"order-{number}", rates=(Rate("queue", 10_000),)) for number in range(count)]
    asked = list(zip(backend.fetch_many(QUEUE, limit=count, ttl=300.0), guards, strict=True))
    assert all(backend.keys.begin_many(asked))
    assert all(backend.settle_many([(lease.guarded(guards), Ack()) for lease, guards in asked[::2]]))
    backend.keys.put_records("pools", {f"pool-{number}": b"x" for number in range(count)}, 60.0)
    return [lease for lease, _ in asked[1::2]]


def test_what_has_run_out_is_swept_a_few_at_a_time(rig: Rig, backend: PostgresBackend) -> None:
    alive = use_everything(backend, 40)
    assert rows(rig) == {"uniques": 40, "done": 20, "holds": 20, "starts": 40, "records": 40}
    make_old(rig)
    assert sweep(rig, 5) == 5
    assert rows(rig)["starts"] == 35
    while sweep(rig, 7):
        pass
    assert rows(rig) == {"uniques": 20, "done": 0, "holds": 20, "starts": 0, "records": 0}
    for number, lease in enumerate(alive):
        assert backend.keys.holders(QUEUE, f"key:order-{2 * number + 1}") == [lease.id]


def sweep(rig: Rig, most: int) -> int:
    [(swept,)] = rig.ask("SELECT {schema}.sweep(%s)", most)
    return int(swept)


@pytest.mark.parametrize(
    "use",
    [
        lambda keys: keys.first_run(QUEUE, "one"),
        lambda keys: keys.take(QUEUE, Rate("queue", 5), "one"),
        lambda keys: keys.put_records("pools", {"one": b"x"}, 60.0),
    ],
    ids=["first_run", "take", "put_records"],
)
def test_who_only_uses_the_key_store_sweeps_too(
    rig: Rig, backend: PostgresBackend, use: Callable[[Any], object]
) -> None:
    use_everything(backend, 4)
    make_old(rig)
    backend._database.next_sweep = 0.0
    use(backend.keys)
    assert rows(rig)["holds"] == 2


@pytest.mark.parametrize(
    "settlement", [Ack(), Nack(), Abandon("failed"), Release(), Forfeit("SIGSEGV")], ids=lambda one: type(one).__name__
)
def test_places_are_gone_with_the_settlement_so_that_nobody_counts_them(
    rig: Rig, backend: PostgresBackend, settlement: Settlement
) -> None:
    guards = Guards(key="order", holds=(Hold("queue", 1000), Hold("job:nightly")))
    settled, other = new_leases(backend, 2)
    begin(backend, settled, guards)
    begin(backend, other, Guards(holds=(Hold("queue", 1000),)))
    assert backend.settle_many([(settled.guarded(guards), settlement)]) == [Settled.OK]
    assert rig.ask("SELECT name, seq FROM {schema}.holds") == [("queue", number_of(other))]


def test_a_settlement_that_was_answered_stands_though_its_places_cannot_be_removed(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards = Guards(key="order")
    [lease] = new_leases(backend, 1)
    begin(backend, lease, guards)
    monkeypatch.setattr(keys, "_RELEASE_PLACES", "SELECT {schema}.a_function_that_is_lost()")
    assert backend.settle_many([(lease.guarded(guards), Ack())]) == [Settled.OK]


def test_places_that_nobody_asks_for_again_go_when_their_lease_has_ended(rig: Rig, backend: PostgresBackend) -> None:
    held, ended = new_leases(backend, 2)
    for lease in (held, ended):
        begin(backend, lease, Guards(holds=(Hold(f"tenant-{lease.id}"),)))
    backend.release(ended)
    rig.ask("UPDATE {schema}.holds SET until = 1")
    assert sweep(rig, 100) == 2
    assert rig.ask("SELECT name FROM {schema}.holds") == [(f"tenant-{held.id}",)]
    assert sweep(rig, 100) == 0


def test_a_place_that_was_taken_again_while_it_was_swept_stays(rig: Rig, backend: PostgresBackend) -> None:
    [lease] = new_leases(backend, 1)
    begin(backend, lease, LOCK)
    backend.release(lease)
    [again] = backend.fetch_many(QUEUE, limit=1, ttl=300.0)
    rig.ask("UPDATE {schema}.holds SET until = 1")
    with rig.connect() as connection:
        in_transaction(rig, connection, again, LOCK)
        swept = rig.submit(sweep, rig, 100)
        assert swept.result(PATIENCE) == 0  # it passes by what somebody has
        connection.commit()
    sweep(rig, 100)
    assert backend.keys.holders(QUEUE, "job:nightly") == [again.id]


def test_records_written_at_once_in_any_order_do_not_lock_up(rig: Rig, backend: PostgresBackend) -> None:
    pools = [rig.open(timeout=PATIENCE) for _ in range(6)]
    names = [f"pool-{number:02}" for number in range(50)]

    def write(number: int) -> None:
        draw = random.Random(number)
        for _ in range(5):
            some = draw.sample(names, 25)
            pools[number].keys.put_records("pools", dict.fromkeys(some, b"x"), 60.0)
            pools[number].keys.delete_records("pools", draw.sample(some, 5))
        pools[number].keys.put_records("pools", dict.fromkeys(names, b"y"), 60.0)

    together(6, write)
    assert backend.keys.list_records("pools") == [(name, b"y") for name in names]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_lines_written_at_once_are_all_there_and_in_each_ones_order(
    rig: Rig, backend: PostgresBackend, isolation: str
) -> None:
    pools = [rig.open(timeout=PATIENCE, isolation=isolation) for _ in range(6)]

    def write(number: int) -> None:
        for step in range(20):
            lines = [(f"job-{(step + number) % 3}", b"%d:%d" % (number, step)), ("all", b"%d:%d" % (number, step))]
            pools[number].keys.append_log("history", lines, 1000)

    together(6, write)
    lines = backend.keys.read_log("history", "all", limit=1000)
    assert len(lines) == len(set(lines)) == 120
    for number in range(6):
        mine = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"%d:" % number)]
        assert mine == list(reversed(range(20)))
    assert sum(len(backend.keys.read_log("history", f"job-{name}", limit=1000)) for name in range(3)) == 120


@pytest.mark.parametrize("count", [1, 3], ids=["alone", "among others"])
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_waits_for_the_first_and_is_told_its_id_if_it_commits(
    rig: Rig, backend: PostgresBackend, connection: Connection, count: int, commits: bool
) -> None:
    [first] = backend.enqueue_in(connection, [unique()])
    second = rig.submit(backend.enqueue_many, [*numbered(count - 1), unique()])
    wait_until(lambda: rig.waits_for_another(), what="the second waits for the first")
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


def test_a_message_that_was_deleted_by_hand_has_no_key(rig: Rig, backend: PostgresBackend) -> None:
    gone = backend.enqueue(unique())
    rig.ask("DELETE FROM {schema}.messages")
    pools = [rig.open(timeout=PATIENCE) for _ in range(6)]
    told = set[str]()
    together(6, lambda number: told.add(pools[number].enqueue(unique())))
    assert len(told) == 1
    assert gone not in told
    assert backend.stats(QUEUE).waiting == 1
