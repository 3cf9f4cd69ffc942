"""What a job costs that asks for nothing: a round trip for each call, and no statement more within it than ever.

A job without guards, unique key or follow-ups is what a pool mostly has. The numbers were the same before there were
any of these: who raises one here slows all of them down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from postgres_explained import Explained, explained, trips
from postgres_rig import Rig
from support.jobs import QUEUE, a_job, numbered

from jobpool.message.guards import Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settlement
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.leases import lease_columns

Call = Callable[[PostgresBackend, Iterator[JobLease]], object]


def some_leases(backend: PostgresBackend) -> Iterator[JobLease]:
    backend.enqueue_many(numbered(40))
    return iter(backend.fetch_many(QUEUE, limit=20))


def settle(settlement: Settlement, count: int = 1) -> Call:
    return lambda backend, leases: backend.settle_many([(next(leases), settlement) for _ in range(count)])


CALLS: list[tuple[str, Call, int]] = [
    ("enqueue", lambda backend, _: backend.enqueue(a_job()), 3),
    ("enqueue a few", lambda backend, _: backend.enqueue_many(numbered(10)), 5),
    ("fetch", lambda backend, _: backend.fetch_many(QUEUE, limit=5), 7),
    ("fetch nothing", lambda backend, _: backend.fetch_many("nothing", limit=5), 3),
    ("ack", settle(Ack()), 5),
    ("ack a few", settle(Ack(), 5), 5),
    ("nack", settle(Nack(5.0, "boom")), 8),
    ("release", settle(Release()), 8),
    ("abandon", settle(Abandon("hopeless")), 6),
    ("forfeit", settle(Forfeit("SIGSEGV")), 6),
    ("renew", lambda backend, leases: backend.renew_many([next(leases)], 30.0), 3),
    ("reap nothing", lambda backend, _: backend.reap("nothing"), 2),
]
"""Each with the statements that the server runs for it, those within the functions too."""


@pytest.mark.parametrize(("call", "statements"), [pytest.param(*case[1:], id=case[0]) for case in CALLS])
def test_a_call_that_asks_for_nothing_is_one_round_trip_and_no_more_statements_than_ever(
    empty: Explained, monkeypatch: pytest.MonkeyPatch, call: Call, statements: int
) -> None:
    leases = some_leases(empty.backend)
    call(empty.backend, leases)  # the first time looks at the catalogue
    empty.plans.clear()
    assert trips(monkeypatch, lambda: call(empty.backend, leases)) == 1
    assert len(empty.plans) <= statements


_LOGGED = """
EXPLAIN (ANALYZE, WAL, FORMAT JSON)
SELECT {schema}.settle(%(call)s, %(ack_queues)s, %(ack_seqs)s, %(ack_holders)s)
"""


def logged(found: Explained, call: str, count: int) -> int:
    """How many records of the write-ahead log that many acks are."""
    backend = found.backend
    backend.enqueue_many(numbered(count))
    leases = backend.renew_many(backend.fetch_many(QUEUE, limit=count), 60.0)
    asked = {"call": call} | lease_columns([lease for lease in leases if lease], "ack_")
    [(plan,)] = backend._database.run(_LOGGED, asked)
    records: int = plan[0]["Plan"]["WAL Records"]
    return records


def test_an_ack_is_one_record_of_the_log_without_one_for_a_lock(empty: Explained) -> None:
    assert logged(empty, "many", 120) - logged(empty, "few", 20) <= 120


def test_an_ack_reads_no_more_where_much_is_leased() -> None:
    """By a plan that was made while the table was known to be empty."""
    with Rig(new=True) as rig:
        rig.open().prepare()
        rig.ask("VACUUM ANALYZE {schema}.messages")
        found = explained(rig)
        leases = some_leases(found.backend)
        ack = partial(settle(Ack(), 5), found.backend, leases)
        ack()  # the first time plans, and looks at the catalogue
        few = found.pages(ack)
        found.backend.enqueue_many(numbered(2000))
        assert len(found.backend.fetch_many(QUEUE, limit=2000)) == 2000
        assert found.pages(ack) <= few + 20


_FETCHED = """
EXPLAIN (ANALYZE, WAL, FORMAT JSON) SELECT * FROM {schema}.take_leases('many', %s, 30000000, %s, 7, MAY_STAY)
"""


@pytest.mark.parametrize(("may_stay", "records"), [("true", 1), ("false", 4)], ids=["first", "ordinary"])
def test_a_lease_is_a_record_of_the_log_and_three_for_indexes_if_it_is_not_the_first(
    empty: Explained, may_stay: str, records: int
) -> None:
    """None is for a lock."""
    backend = empty.backend
    backend.enqueue_many(numbered(200, queue="many"))
    backend.fetch_many("many", limit=10)  # the priority is known from now on
    few, many = (
        backend._database.run(_FETCHED.replace("MAY_STAY", may_stay), (count, f"{may_stay} {count}"))[0][0][0]["Plan"]
        for count in (20, 120)
    )
    # Pages are pruned and split now and then, and a full one has no room for another version of its rows.
    assert records * 100 <= many["WAL Records"] - few["WAL Records"] < records * 100 + 60


def test_whatever_is_asked_of_the_key_store_is_one_round_trip(
    empty: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, keys = empty.backend, empty.backend.keys
    backend.enqueue_many(numbered(5))
    guards = Guards(key="order", holds=(Hold("queue", 9),))
    batch = [(lease, guards) for lease in backend.fetch_many(QUEUE, limit=5)]
    acks: list[tuple[JobLease, Settlement]] = [(lease.guarded(guards), Ack()) for lease, guards in batch]
    settle = lambda: backend.settle_many(acks)  # noqa: E731
    steps: list[Callable[[], object]] = [
        lambda: backend.enqueue_many([a_job(unique=True, idempotency_key=str(number)) for number in range(9)]),
        lambda: keys.begin_many(batch),
        settle,
        lambda: keys.first_run(QUEUE, "one"),
        lambda: keys.put_records("pools", {"one": b"1", "two": b"2"}, 60.0),
        lambda: keys.list_records("pools"),
        lambda: keys.append_log("history", [("one", b"1"), ("two", b"2")], 10),
    ]
    took = [trips(monkeypatch, step) for step in steps]
    assert took.pop(steps.index(settle)) == 2, "the places of what was settled are removed behind it"
    assert took == [1] * len(took)
