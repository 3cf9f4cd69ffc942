"""With 200,000 messages in the table no statement reads more than its share of them, whatever the server believes.

What a statement costs is counted in pages that it touches, which no load disturbs. `--all`: a million messages;
POOLTEST_FULL=1: a million in each state, whose indexes are no deeper.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest
from postgres_explained import Explained, check_plans, compare_costs, prepared
from postgres_rig import Rig
from support import tiers
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settlement
from jobpool_backends.postgres import PostgresBackend

pytestmark = pytest.mark.xdist_group("postgres-million")  # one load for all of them

FEW = 1000
MANY = 1_000_000 if os.environ.get("POOLTEST_FULL") else 250_000 if tiers.ALL else 50_000

_FILL = """
INSERT INTO {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body,
    holder, deadline, ttl, died_at, reason)
SELECT now, now + CASE state WHEN 1 THEN 1000000000 ELSE 0 END, number %% 3, state, false,
    state = 0 AND number %% 2 = 0, state || '-' || number, %s, 'report', '{}', CASE state WHEN 2 THEN 1 END,
    CASE state WHEN 2 THEN now + 1000000000 END, CASE state WHEN 2 THEN 1000000000 END, CASE state WHEN 3 THEN now END,
    CASE state WHEN 3 THEN 'timeout' END
FROM generate_series(1, %s) AS number, generate_series(0, 3) AS state, (SELECT {schema}.moment() AS now OFFSET 0) AS m
"""


def filled(rig: Rig, each: int) -> Explained:
    """So many messages in each of the four states; the server is not told what is in the table."""
    return prepared(rig, ("messages",), costs, lambda: rig.ask(_FILL, QUEUE, each))


def costs(found: Explained) -> dict[str, int]:
    """What each call that a pool, a producer or an administrator makes costs, in pages."""
    backend = found.backend
    backend.enqueue_many(numbered(4000))
    pages: dict[str, int] = {}

    def measure(name: str, work: Callable[[], object]) -> None:
        found.pages(work)  # the first time looks at the catalogue, and at what is dead
        pages[name] = min(found.pages(work) for _ in range(2))
        check_plans(found, name)

    measure("enqueue", lambda: backend.enqueue(a_job()))
    measure("enqueue given", lambda: backend.enqueue_many([a_job(identifier="one"), a_job(identifier="two")]))
    held: list[JobLease] = []
    measure("fetch", lambda: held.extend(backend.fetch_many(QUEUE, limit=100, ttl=500.0)))
    # Now and then a fetch moves a floor as well.
    pages["costliest fetch"] = max(
        found.pages(lambda: held.extend(backend.fetch_many(QUEUE, limit=50, ttl=500.0))) for _ in range(60)
    )
    backend.renew_many(held, 500.0)  # a list reads all first leases, of which there are as many as pools hold
    measure("fetch nothing", lambda: backend.fetch_many("nothing", limit=100))
    measure("wait", lambda: backend.wait_any([QUEUE], 0.0))
    measure("wait in vain", lambda: backend.wait_any(["nothing"], 0.0))
    settle_each_way(found, pages)
    measure("sweep", lambda: backend._database.value("sweep", 100))
    measure("reap nothing", lambda: backend.reap(QUEUE))
    measure("stats", lambda: backend.stats("nothing"))
    measure("queues", backend.queues)
    for states in STATES:
        for queue in (QUEUE, None):
            where = MessageFilter(queue=queue, states=states)
            measure(f"list {queue} {states}", partial(backend.list_messages, where, limit=20))
    measure("inspect", lambda: backend.inspect("0-7"))
    measure("count", lambda: backend.count(MessageFilter(queue=QUEUE), cap=20))
    return pages


STATES = ((), (State.WAITING,), (State.DELAYED,), (State.LEASED,), (State.DEAD,), (State.WAITING, State.DEAD))

SETTLEMENTS: dict[str, Settlement] = {
    "ack": Ack(),
    "nack": Nack(),
    "nack later": Nack(500.0),
    "abandon": Abandon("x"),
    "release": Release(),
    "forfeit": Forfeit("x"),
}


def settle_each_way(found: Explained, pages: dict[str, int]) -> None:
    """Two rounds; the first looks at the catalogue."""
    backend = found.backend
    for _ in range(2):
        leases = backend.fetch_many(QUEUE, limit=70, ttl=500.0)
        pages["renew"] = found.pages(partial(backend.renew_many, leases, 500.0))
        check_plans(found, "renew")
        for place, (name, settlement) in enumerate(SETTLEMENTS.items()):
            batch = [(lease, settlement) for lease in leases[place::7]]
            pages[name] = found.pages(partial(backend.settle_many, batch))
            check_plans(found, name)
        pages["reap"] = found.pages(lambda: backend.reap(QUEUE))
        check_plans(found, "reap")
        give_back(backend, leases)


def give_back(backend: PostgresBackend, leases: list[JobLease]) -> None:
    backend.settle_many([(lease, Release()) for lease in leases])


def test_the_cost_does_not_grow_with_the_messages(few: Explained, many: tuple[Rig, Explained]) -> None:
    compare_costs(costs, few, many, ["messages"], 1.5, 5)


def test_stats_count_no_further_than_they_say(many: tuple[Rig, Explained]) -> None:
    _, found = many
    stats = found.backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead, stats.cap) == (10_000,) * 5
    assert stats.oldest is not None
    check_plans(found, "stats")


def test_bulk_verbs_read_what_they_change(many: tuple[Rig, Explained]) -> None:
    _, found = many
    dead = MessageFilter(queue=QUEUE, states=(State.DEAD,))
    given = MessageFilter(ids=("0-1", "0-2"))
    waiting = MessageFilter(queue=QUEUE, states=(State.WAITING,))
    cases = [(waiting, Verb.CANCEL), (dead, Verb.RETRY), (dead, Verb.RESUME), (dead, Verb.DELETE), (given, Verb.DELETE)]
    for where, verb in cases:
        found.backend.bulk(where, verb, limit=2)  # the first time looks at the catalogue
        assert found.pages(partial(found.backend.bulk, where, verb, limit=2)) < 100
        check_plans(found, "bulk")


def test_an_eviction_reads_what_it_removes_and_what_a_queue_may_keep(many: tuple[Rig, Explained]) -> None:
    """`dead_max` first: that walks over the newest, as many as may stay, in the index alone."""
    rig, found = many
    sql = f'SELECT "{rig.schema}".evict(%b, %b::bigint, %b::bigint, 2)'
    for kept, age in ((20, None), (None, 0)):
        evict = partial(found.backend._database.run, sql, (QUEUE, kept, age))
        evict()  # the first time looks at the catalogue
        assert found.pages(evict) < 100
        check_plans(found, "evict")
