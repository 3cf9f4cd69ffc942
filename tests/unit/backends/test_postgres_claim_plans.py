"""With 100,000 live claims, and many messages in each state, no verb of claims reads more than its share of them.

What a statement costs is counted in pages that it touches, which no load disturbs; and a call that pools, producers and
claimers make often is one round trip, with no statement more within it than ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from postgres_explained import Explained, check_plans, compare_costs, prepared, trips
from postgres_rig import Rig
from support.claims import claim, ids, post
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import HeldClaim
from jobpool.broker.values import MessageFilter, State, Verb

pytestmark = pytest.mark.xdist_group("postgres-million")  # one load after the other

FEW = (300, 10)
MANY = (10_000, 100_000)
"""Messages in each of the eight states, and live claims."""

_FILL = """
INSERT INTO {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body,
    holder, deadline, ttl, died_at, reason, claim, claims, ends_at)
SELECT now, now + CASE WHEN state IN (1, 5) THEN 1000000000 ELSE 0 END, 5, state, false, state = 0 AND number %% 2 = 0,
    state || '-' || number, %s, CASE WHEN state > 3 THEN '' ELSE 'report' END, '{}', CASE state WHEN 2 THEN 1 END,
    CASE WHEN state IN (2, 6) THEN now + 1000000000 END, CASE WHEN state IN (2, 6) THEN 1000000000 END,
    CASE state WHEN 3 THEN now END, CASE state WHEN 3 THEN 'timeout' END,
    CASE WHEN state IN (2, 6) THEN lpad(to_hex(number / 10), 32, '0') END, 1,
    CASE WHEN state > 3 AND number %% 2 = 0 THEN now + 1000000000 END
FROM generate_series(1, %s) AS number, generate_series(0, 7) AS state, (SELECT {schema}.moment() AS now OFFSET 0) AS m;
"""
_FILL_CLAIMS = """
INSERT INTO {schema}.claims (queue, id, ttl, grace, since, until, states, seqs)
SELECT m.queue, m.claim, 1000000000, 60000000, now, min(m.deadline), array_agg(m.state), array_agg(m.seq)
FROM {schema}.messages m, (SELECT {schema}.moment() AS now OFFSET 0) n WHERE m.claim IS NOT NULL GROUP BY 1, 2, 5
UNION ALL
SELECT %s, 'd' || lpad(to_hex(number), 31, '0'), 1000000000, 60000000, now, now + 1000000000 + number, '{6}', '{0}'
FROM generate_series(1, %s) AS number, (SELECT {schema}.moment() AS now OFFSET 0) n;
"""
TABLES = ("messages", "claims", "heads", "expiries")


def filled(rig: Rig, size: tuple[int, int]) -> Explained:
    each, claims = size

    def fill() -> None:
        rig.ask(_FILL, QUEUE, each)
        rig.ask(_FILL_CLAIMS, QUEUE, claims)

    return prepared(rig, TABLES, costs, fill)


def some_work(backend: QueueBackend) -> dict[str, Callable[[HeldClaim, list[str]], object]]:
    """Calls on a claim of six, and some ids of free messages."""
    claims = backend.claims
    return {
        "get": lambda held, _: claims.get(QUEUE, held.id),
        "get none": lambda *_: claims.release(QUEUE, "f" * 32),
        "renew": lambda held, _: claims.renew(QUEUE, held.id, ttl=400.0, grace=4000.0),
        "delete": lambda held, _: claims.delete_many(QUEUE, ids(held.messages[:3]), held.id),
        "delete held": lambda held, _: claims.delete_many(QUEUE, ids(held.messages[3:])),
        "release": lambda held, _: claims.release(QUEUE, held.id),
        "claim again": lambda *_: claim(backend, claim_id="e" * 32),
        "delete free": lambda _, free: claims.delete_many(QUEUE, free[:4]),
        "delete delayed": lambda _, free: claims.delete_many(QUEUE, free[4:]),
        "claim nothing": lambda *_: claims.claim("nothing", limit=9, ttl=60.0, grace=60.0),
        "pop": lambda *_: claims.pop(QUEUE, 5),
        "list": lambda *_: claims.list_free(QUEUE, limit=20),
        "list all": lambda *_: claims.list_free(QUEUE, limit=20, claimed=True),
        "list of claims": lambda *_: claims.list_claims(QUEUE, after="0" * 30, limit=20),
        "list of messages": lambda *_: backend.list_messages(MessageFilter(queue=QUEUE), limit=20),
        "list of the delayed": lambda *_: backend.list_messages(MessageFilter(states=(State.DELAYED,)), limit=20),
        "bulk": lambda *_: backend.bulk(MessageFilter(ids=("4-5", "7-5")), Verb.DELETE),
        "stats": lambda *_: backend.stats("nothing"),
        "claims' stats": lambda *_: claims.stats("nothing"),
        "queues": lambda *_: backend.queues(),
        "reap nothing": lambda *_: backend.reap(QUEUE),
    }


def costs(found: Explained) -> dict[str, int]:
    """In pages; the first round looks at the catalogue."""
    backend, pages = found.backend, dict[str, int]()

    def measure(name: str, work: Callable[[], object]) -> None:
        cost = found.pages(work)
        check_plans(found, name)
        pages[name] = min(pages.get(name, cost), cost) if pages.get(name) else cost

    for worn in (0, 0, 1_000_000, 1_000_000):
        backend.enqueue_many([a_job(priority=0) for _ in range(9)])
        free = post(backend, *[b"x"] * 4) + post(backend, b"x", delay=900.0)
        measure("post", lambda: post(backend, b"x", life=600.0))
        kept: list[HeldClaim] = []
        measure(f"claim {worn}", partial(claim_into, kept, backend, worn))
        for name, work in some_work(backend).items():
            measure(name, partial(work, kept[0], free))
    return pages


def claim_into(kept: list[HeldClaim], backend: QueueBackend, max_claims: int) -> None:
    kept.append(claim(backend, 15, max_claims=max_claims))


def test_the_cost_does_not_grow_with_claims_or_messages(few: Explained, many: tuple[Rig, Explained]) -> None:
    compare_costs(costs, few, many, ("messages", "claims"))


def test_counts_go_no_further_than_they_say(many: tuple[Rig, Explained]) -> None:
    _, found = many
    counts = found.backend.claims.stats(QUEUE)
    check_plans(found, "counts")
    assert (counts.claimed, counts.free, counts.delayed) == (10_000,) * 3
    stats = found.backend.stats(QUEUE)
    check_plans(found, "stats")
    assert (stats.posted, stats.cap) == (10_000, 10_000)


STATEMENTS = {"post": 5, "claim": 20, "renew": 7, "get": 3, "delete": 6, "release": 12}
"""What the server runs for each call, that within the functions too."""


@pytest.mark.parametrize("kind", ["post", "job"])
def test_a_call_is_one_round_trip_and_no_more_statements_than_ever(
    empty: Explained, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    backend = empty.backend

    def steps() -> Iterator[tuple[str, Callable[[], object]]]:
        if kind == "post":
            yield "post", lambda: post(backend, *[b"x"] * 6)
        else:
            backend.enqueue_many(numbered(6))
        held: list[HeldClaim] = []
        yield "claim", lambda: held.append(claim(backend, 5))
        yield "renew", lambda: backend.claims.renew(QUEUE, held[0].id, ttl=60.0)
        yield "get", lambda: backend.claims.get(QUEUE, held[0].id)
        yield "delete", lambda: backend.claims.delete_many(QUEUE, ids(held[0].messages[:3]), held[0].id)
        yield "release", lambda: backend.claims.release(QUEUE, held[0].id)

    for _, step in steps():
        step()  # the first time looks at the catalogue
    for name, step in steps():
        empty.plans.clear()
        assert (name, trips(monkeypatch, step)) == (name, 1)
        assert len(empty.plans) <= STATEMENTS[name], name
