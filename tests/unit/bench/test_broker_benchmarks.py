"""Benchmarks of brokers and peers, as small as they get: every figure is there. No test looks at how large it is.

The peers take part where their environment has been made; `scripts/bench redis` makes it. The benchmarks share a Redis
and a Postgres here, and a program of theirs that only calls a broker runs as a process of its own once, and from then
on in this one: to start either takes longer than all that they do with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from bench import (
    claims,
    enqueue,
    guards,
    latency,
    limits,
    memory,
    on_postgres,
    on_redis,
    pools,
    programs,
    scale,
    servers,
    timeouts,
)
from bench.figures import Section
from bench.peers import environment
from bench.plan import Plan

PEERS = environment.exists()
PLAN = Plan(tiny=True, workers=2, peers=PEERS)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[servers.Server, servers.Server]]:
    """A Redis that keeps nothing, and a Postgres."""
    folders = Plan().scratch(), Plan().scratch()  # where Postgres's user can come
    with folders[0] as one, folders[1] as two, servers.redis(one) as redis, servers.postgres(two) as postgres:
        yield redis, postgres


@pytest.fixture(autouse=True)
def economy(shared: tuple[servers.Server, servers.Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """See the module. A Redis with other options is still the benchmark's own."""
    redis, own_redis = shared[0], servers.redis

    def a_redis(
        directory: Path, config: Mapping[str, str] = servers.IN_MEMORY
    ) -> AbstractContextManager[servers.Server]:
        return nullcontext(redis) if config == servers.IN_MEMORY else own_redis(directory, config)

    monkeypatch.setattr(servers, "redis", a_redis)
    monkeypatch.setattr(servers, "postgres", lambda _: nullcontext(shared[1]))
    for module in (scale, claims):
        monkeypatch.setattr(module, "sample", sample)


PROGRAMS: set[str] = set()
"""Those that have run as processes, with the words of what was asked of them."""


def sample(module: str, **spec: Any) -> dict[str, Any]:
    """As `bench.programs.sample`; the same program, asked with the same words, is but one process."""
    program = " ".join([module, *sorted(spec)])
    if program in PROGRAMS:
        found: dict[str, Any] = import_module(f"bench.{module}").run(**spec)
        return found
    PROGRAMS.add(program)
    return programs.sample(module, **spec)


def names(section: Section) -> set[str]:
    """Those of its figures, all of which must make sense."""
    assert all(figure.low <= figure.value <= figure.high for figure in section.figures)
    return {figure.name for figure in section.figures}


def with_peers(*wanted: str) -> set[str]:
    return set(wanted) if PEERS else set()


@pytest.mark.more
def test_a_pool_over_redis_beside_its_peers() -> None:
    found = names(on_redis.run(PLAN))

    assert {"pool", "pool, every second", "pool: CPU workers", "pool: CPU server"} <= found
    assert with_peers("pool / Celery", "pool / Dramatiq", "pool / Pebble, no broker", "Huey: CPU server") <= found


@pytest.mark.more
def test_a_pool_over_postgres_beside_its_peers() -> None:
    found = names(on_postgres.run(PLAN))

    assert {"pool", "pool / fetch and ack, batches of 10", "pool: CPU client"} <= found
    assert with_peers("pool / Procrastinate", "pool / PgQueuer", "PgQueuer, batches of 100: CPU workers") <= found


@pytest.mark.more
def test_a_producer_beside_a_bare_client() -> None:
    found = names(enqueue.run(PLAN))

    for broker in ("Redis", "Postgres"):
        assert {f"{broker} / bare client: single", f"{broker} / bare client: bulk"} <= found
    assert with_peers("Redis, Celery: single", "Postgres, PgQueuer: bulk") <= found


@pytest.mark.more
def test_few_messages_beside_many() -> None:
    found = names(scale.run(PLAN))

    assert {"Redis, 1,000 / 100 waiting: fetch", "Postgres, 1,000 / 100 dead: reap"} <= found
    assert len(found) == 2 * 3 * 3 * 2


@pytest.mark.more
def test_idle_pools_on_each_broker() -> None:
    found = names(latency.run(PLAN))

    for broker in ("SQLite", "Redis", "Postgres"):
        assert f"{broker}: enqueue → first line, p99" in found
    assert {f"{broker}: broker commands of the idle pool" for broker in ("Redis", "Postgres")} <= found
    assert (
        with_peers("Redis, Huey: enqueue → first line, p50", "Postgres, PgQueuer: enqueue → first line, p50") <= found
    )


@pytest.mark.more
def test_handlers_that_hang_in_c() -> None:
    found = names(timeouts.run(PLAN))

    assert {"dead, p50", "successor ready, p99"} <= found
    assert with_peers("Celery: dead, p50", "Dramatiq: dead, p50", "Huey: dead, p50", "Pebble: dead, p50") <= found


@pytest.mark.more
def test_the_memory_of_idle_workers() -> None:
    found = names(memory.run(PLAN))

    everything = "everything, proportional set size, after 200 jobs"
    assert {everything, "private memory of a child, new"} <= found
    peers = ("Celery", "Dramatiq", "Huey", "Pebble", "executor")
    assert with_peers(*(f"{peer}: {everything}" for peer in peers)) <= found


@pytest.mark.more
def test_guards_beside_plain_jobs() -> None:
    found = names(guards.run(PLAN))

    for broker in ("SQLite", "Redis", "Postgres"):
        assert {f"{broker}, plain", f"{broker}, rate limit / plain", f"{broker}, idempotency keys"} <= found


@pytest.mark.more
def test_what_two_pools_keep_together() -> None:
    section = limits.run(PLAN)

    assert {"Redis, 8:1, off by", "SQLite, 3 places, most at once", "Postgres, 3 places, in use"} <= names(section)
    assert all(figure.met for figure in section.figures if "most at once" in figure.name)


@pytest.mark.more
def test_many_pools_on_one_broker() -> None:
    section = pools.run(PLAN)

    figures = {figure.name: figure.value for figure in section.figures}
    assert names(section) == set(figures)
    for broker in ("Redis", "Postgres"):
        for what in ("CPU broker", "requests", "requests a pool", "fewest", "most", "model / measured"):
            assert figures[f"{broker}, no-op, 2 pools: {what}"] > 0
        assert figures[f"{broker}, 5 ms: on the wire, both ways"] > 0
        assert figures[f"{broker}: a job that waits"] > 0
        assert figures[f"{broker}: connections a pool"] >= 2
        for verb in ("renewals", "reaps"):
            assert figures[f"{broker}, 2 pools, holding: {verb} a pool"] > 0
    assert figures["Postgres, no-op: write-ahead log"] > 0


@pytest.mark.more
def test_claims_beside_leases_and_beside_many_claims() -> None:
    found = names(claims.run(PLAN))

    for broker in ("SQLite", "Redis", "Postgres"):
        assert {f"{broker}: claim", f"{broker}: claim, renew claim, delete / fetch, renew, settle"} <= found
        assert f"{broker}, beside 50 / 10 claims: delete" in found
