"""How long an idle pool takes to begin a job, and what it costs to be idle; its peers beside it."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext

from bench import servers
from bench.beanstalk_server import beanstalkd
from bench.figures import Figure, Section, Target, median, percentile
from bench.live_pool import LivePool, live_pool
from bench.peers import environment, fleet, running
from bench.plan import Plan
from bench.processes import total_cpu

TITLE = "idle pools of 16: from the call of enqueue to the handler's first line"
PEERS = ("celery", "dramatiq", "huey", "pgqueuer")
SHORTEST_GAP = 0.02
LONGEST_GAP = 0.2

REST = 1.5
"""Seconds between the last job and what is taken for idleness."""


SQLITE = (Target("≤", 1.8), Target("≤", 50))
REDIS = (Target("≤", 1), Target("≤", 4))
POSTGRES = (Target("≤", 2.5), Target("≤", 6))
BEANSTALKD = (Target("≤", 5), None)
"""Of the median and of the 99th percentile, in milliseconds."""

Targets = tuple[Target | None, Target | None]


def run(plan: Plan) -> Section:
    """Sample at random distances, so that they meet every phase of timers."""
    if plan.peers:
        environment.ensure()
    figures = _of_pool(plan, "SQLite", SQLITE)
    with plan.scratch() as scratch, servers.redis(scratch) as server:
        figures += _of_pool(plan, "Redis", REDIS, server)
        for name, peer in {"Huey": fleet.HUEY, "Celery": fleet.CELERY, "Dramatiq": fleet.DRAMATIQ}.items():
            figures += _of_peer(plan, f"Redis, {name}", peer, server)
    with plan.scratch() as scratch, servers.postgres(scratch) as server:
        figures += _of_pool(plan, "Postgres", POSTGRES, server)
        figures += _of_peer(plan, "Postgres, PgQueuer", fleet.PGQUEUER, server)
    with plan.scratch() as scratch, beanstalkd(scratch) as server:
        figures += _of_pool(plan, "beanstalkd", BEANSTALKD, server)
    return Section("latency", TITLE, figures, [environment.versions(PEERS if plan.peers else ())])


def _workers(plan: Plan) -> int:
    return plan.pick(16, 16, 2)


def _of_pool(plan: Plan, name: str, targets: Targets, server: servers.Server | None = None) -> list[Figure]:
    if server is None:
        return _figures(plan, name, targets, None, "")
    with server.fresh() as url:
        return _figures(plan, name, targets, server, url)


def _figures(plan: Plan, name: str, targets: Targets, server: servers.Server | None, url: str) -> list[Figure]:
    with live_pool(plan, _workers(plan), broker=url) as pool:
        waits, calls = _samples(pool, plan.pick(200, 50, 3))
        figures = _percentiles(name, waits, targets)
        figures.append(percentile(f"{name}: of it, until enqueue returned", "ms", calls, 50))
        rest, seconds = (0.1, 0.2) if plan.tiny else (REST, plan.pick(15, 5))
        figures += _idle(pool, name, rest, seconds, server, url)
    return figures


def _percentiles(name: str, waits: list[float], targets: Targets) -> list[Figure]:
    what = f"{name}: enqueue → first line"
    return [percentile(what, "ms", waits, rank, target) for rank, target in zip((50, 99), targets, strict=True)]


def _samples(pool: LivePool, count: int) -> tuple[list[float], list[float]]:
    """Return milliseconds until the first line, and until the call returned."""
    called: list[float] = []
    calls: list[float] = []
    for number in range(count + 1):
        time.sleep(random.uniform(SHORTEST_GAP, LONGEST_GAP))
        called.append(time.monotonic())
        pool.enqueue("stamp", path=str(pool.notes), number=number)
        calls.append((time.monotonic() - called[-1]) * 1e3)
    begun = {int(number): float(at) for number, at in pool.lines(count + 1)}
    waits = [(begun[number] - called[number]) * 1e3 for number in range(count + 1)]
    return waits[1:], calls[1:]  # the first one opens the broker


def _idle(
    pool: LivePool, name: str, rest: float, seconds: float, server: servers.Server | None, url: str
) -> list[Figure]:
    """Return the cost of idleness: of all processes of the pool, and of its broker."""
    pool.jobs.close()  # Postgres counts a session's transactions when it is over, or some time later
    time.sleep(rest)
    pids = pool.processes()
    with server.asked(url) if server else nullcontext(servers.Asked()) as asked:
        cpu, begun = total_cpu(pids), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - begun
        share = (total_cpu(pids) - cpu) / passed * 100
    figures = [median(f"{name}: CPU of the idle pool, all processes", "% of a core", [share], Target("≤", 1))]
    if server:
        rate = asked.commands / passed
        figures.append(median(f"{name}: broker commands of the idle pool", "/s", [rate], Target("≤", 10)))
    if asked.within:
        figures.append(median(f"{name}: and inside its scripts", "/s", [asked.within / passed]))
    return figures


def _of_peer(plan: Plan, name: str, peer: fleet.Peer, server: servers.Server) -> list[Figure]:
    if not plan.peers:
        return []
    gaps = (SHORTEST_GAP, LONGEST_GAP)
    with plan.scratch() as scratch:
        waits = running.latencies(peer, server, _workers(plan), plan.pick(100, 30, 3), scratch, gaps=gaps)
    return _percentiles(name, [wait * 1e3 for wait in waits], (None, None))
