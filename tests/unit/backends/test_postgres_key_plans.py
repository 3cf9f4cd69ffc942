"""With very many keys, places, starts, records, lines and results no step reads more than its share of them.

What a statement costs is counted in pages that it touches, which no load disturbs. 50,000 rows in each table;
a quarter of a million with `--all`, and a million with POOLTEST_FULL=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from postgres_explained import Explained, check_plans, compare_costs, explained, prepared
from postgres_rig import Rig
from support import tiers
from support.jobs import QUEUE, numbered, unique
from support.looks import a_lease

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.message.guards import Begin, Guards, Hold, Rate
from jobpool.message.settlement import Abandon, Ack, Move, Release

pytestmark = pytest.mark.xdist_group("postgres-million")  # one load after the other

FEW = 1000
MANY = 1_000_000 if os.environ.get("POOLTEST_FULL") else 250_000 if tiers.ALL else 50_000

_FILL = {
    "uniques": "SELECT 'reports', 'full-' || n, n::text, CASE n %% 2 WHEN 0 THEN later END",
    "done": "SELECT 'reports', 'full-' || n, later",
    "holds": "SELECT 'reports', 'full-' || n, n + 1000000000, 1, later",
    "starts": "SELECT 'reports', 'full-' || n %% 1000, n::text, later - 3600000000 - n, later",
    "records": "SELECT 'full', 'full-' || n, later, '{}'",
    "logs": "SELECT 'full', 'full-' || n %% 1000, 1 + n / 1000, '{}'",
    "results": "SELECT 'full-' || n, later, '{}'",
}
"""So many rows in each table, none of which is due to go within the test."""

_FROM = "FROM generate_series(1, %s) AS n, (SELECT {schema}.moment() + 36000000000 AS later OFFSET 0) AS m"
_fresh = count()


def filled(rig: Rig, each: int) -> Explained:
    def fill() -> None:
        for table, columns in _FILL.items():
            rig.ask(f"INSERT INTO {{schema}}.{table} {columns} {_FROM}", each)

    return prepared(rig, _FILL, costs, fill)


def fresh() -> str:
    return f"new-{next(_fresh)}"


def costs(found: Explained) -> dict[str, int]:
    """What each step costs, in pages."""
    backend, keys = found.backend, found.backend.keys
    pages: dict[str, int] = {}

    def measure(name: str, step: Callable[[], object]) -> None:
        step()  # the first time looks at the catalogue
        pages[name] = min(found.pages(step) for _ in range(3))
        check_plans(found, name)

    backend.enqueue_many(numbered(400))
    for guards, answer in (
        (lambda: Guards(key=fresh(), holds=(Hold(fresh()),), rates=(Rate(fresh(), 5),)), Begin.GRANTED),
        (lambda: Guards(key="held", holds=(Hold("places", 50),)), Begin.HELD),
        (lambda: Guards(holds=(Hold("places", 50),)), Begin.HELD),
        (lambda: Guards(rates=(Rate("rate", 50, 3600.0),)), Begin.LIMITED),
        (lambda: Guards(key="done"), Begin.DONE),
    ):
        taken(found)
        name = f"begin, {answer.value}"
        while name in pages:
            name += " again"
        measure(name, partial(lambda guards, answer: ask(found, guards(), answer), guards, answer))
    keys.put_records("mine", {f"key-{number}": b"x" for number in range(30)}, 60.0)
    keys.append_log("mine", [("nightly", b"x")] * 30, 100)
    for name, step in steps(found).items():
        measure(name, step)
    for states in ((State.DEAD,), (State.WAITING, State.DELAYED)):
        while backend.bulk(MessageFilter(states=states), Verb.DELETE):
            pass
    return pages


def taken(found: Explained) -> None:
    """What the steps are refused: fifty places, a rate's starts, a key that runs, one that is done."""
    backend, keys = found.backend, found.backend.keys
    if not keys.holders(QUEUE, "places"):
        leases = backend.fetch_many(QUEUE, limit=51, ttl=3600.0)
        keys.begin_many([(lease, Guards(holds=(Hold("places", 50),))) for lease in leases[:50]])
        keys.begin_many([(leases[50], Guards(key="held"))])
    for number in range(50):
        keys.take(QUEUE, Rate("rate", 50, 3600.0), str(number))
    keys.first_run(QUEUE, "done")


def ask(found: Explained, guards: Guards, answer: Begin) -> None:
    """Of a new lease; only this call is measured, because it is the last."""
    lease = a_lease(found.backend, ttl=3600.0)
    assert found.backend.keys.begin_many([(lease, guards)])[0].answer is answer


def steps(found: Explained) -> dict[str, Callable[[], object]]:
    backend, keys = found.backend, found.backend.keys
    rate = Rate("rate", 50, 3600.0)

    def settle(settlement: Any, guards: Guards | None = None) -> Callable[[], object]:
        def step() -> None:
            backend.enqueue(unique(fresh()))
            lease = a_lease(found.backend, ttl=3600.0)
            if guards is not None:
                lease = lease.guarded(guards)
            assert backend.settle_many([(lease, settlement)])[0]

        return step

    def resume() -> None:
        settle(Abandon("failed"))()
        assert backend.bulk(MessageFilter(queue=QUEUE, states=(State.DEAD,)), Verb.RESUME, limit=1) == 1

    def evict() -> None:
        settle(Abandon("failed"))()
        backend._database.run(f'SELECT "{backend._database.schema}".evict(%b, 0, 0, 10)', (QUEUE,))

    return {
        "enqueue unique": lambda: backend.enqueue(unique(fresh())),
        "enqueue known": lambda: backend.enqueue(unique("known")),
        "ack": settle(Ack()),
        "ack with a key": settle(Ack(), Guards(key="mine")),
        "release": settle(Release(60.0, begun=False), Guards(rates=(rate, Rate("other", 5)))),
        "move": settle(Move("elsewhere")),
        "resume": resume,
        "evict": evict,
        "take": lambda: keys.take(QUEUE, Rate(fresh(), 5), "one"),
        "take in vain": lambda: keys.take(QUEUE, rate, fresh()),
        "first run": lambda: keys.first_run(QUEUE, fresh()),
        "not the first run": lambda: keys.first_run(QUEUE, "done"),
        "forget": lambda: keys.forget(QUEUE, fresh()),
        "holders": lambda: keys.holders(QUEUE, "places"),
        "put": lambda: keys.put_records("mine", {"key-1": b"y", "key-2": b"y"}, 60.0),
        "get": lambda: keys.get_record("mine", "key-1"),
        "list": lambda: keys.list_records("mine", prefix="key", after="key-1", limit=10),
        "list an end": lambda: keys.list_records("mine", prefix="z", limit=10),
        "delete": lambda: keys.delete_records("mine", ["key-29", "gone"]),
        "append": lambda: keys.append_log("mine", [("nightly", b"x"), ("daily", b"x")], 20),
        "read": lambda: keys.read_log("mine", "nightly", limit=10),
        "logs": lambda: keys.list_logs("mine"),
        "results": lambda: backend.kept(["full-1", "full-2", "gone"]),
        "sweep": lambda: backend._database.run(f'SELECT "{backend._database.schema}".sweep(100)'),
    }


def test_the_cost_does_not_grow_with_what_is_kept(few: Explained, many: tuple[Rig, Explained]) -> None:
    compare_costs(costs, few, many, _FILL)


def test_results_are_found_by_their_ids_however_many_there_were_when_it_was_planned() -> None:
    """A plan by the index of their ends is cheap for some, and stays while they become a million."""
    with Rig(new=True) as rig:
        rig.open().prepare()
        for each in (100, 1000, 3000):
            rig.ask("TRUNCATE {schema}.results")
            rig.ask(f"INSERT INTO {{schema}}.results {_FILL['results']} {_FROM}", each)
            rig.ask("ANALYZE {schema}.results")
            found = explained(rig)
            found.pages(lambda found=found: found.backend.kept(["full-1", "gone"]))  # type: ignore[misc]
            read = [node["Index Name"] for _, node in found.nodes() if node.get("Relation Name") == "results"]
            assert read == ["results_pkey"], each
