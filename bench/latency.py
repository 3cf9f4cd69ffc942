"""How long an idle pool takes to begin a job, and what it costs to be idle."""

from __future__ import annotations

import random
import time

from bench.figures import Section, Target, median, percentile
from bench.livepool import LivePool, live_pool
from bench.plan import Plan
from bench.processes import total_cpu

TITLE = "idle pool of 16 on SQLite: from the call of enqueue to the handler's first line"
WORKERS = 16
SHORTEST_GAP = 0.02
LONGEST_GAP = 0.25


def run(plan: Plan) -> Section:
    """Samples at random distances, so that they meet every phase of whatever runs by a timer."""
    with live_pool(plan, WORKERS) as pool:
        waits, calls = _samples(pool, plan.pick(300, 50, 3))
        idle = _idle_share(pool, plan.pick(30, 5, 1))
    return Section(
        "latency",
        TITLE,
        [
            percentile("enqueue → first line", "ms", waits, 50, Target("≤", 10)),
            percentile("enqueue → first line", "ms", waits, 90),
            percentile("enqueue → first line", "ms", waits, 99, Target("≤", 50)),
            percentile("of it, until enqueue returned", "ms", calls, 50),
            median("CPU of the idle pool, all processes", "% of a core", [idle * 100], Target("≤", 1)),
        ],
    )


def _samples(pool: LivePool, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds until the first line, and until the call returned."""
    called: list[float] = []
    calls: list[float] = []
    for number in range(count + 1):
        time.sleep(random.uniform(SHORTEST_GAP, LONGEST_GAP))
        called.append(time.monotonic())
        pool.enqueue("stamp", path=str(pool.notes), number=number)
        calls.append((time.monotonic() - called[-1]) * 1e3)
    begun = {int(number): float(at) for number, at in pool.lines(count + 1)}
    waits = [(begun[number] - called[number]) * 1e3 for number in range(count + 1)]
    return waits[1:], calls[1:]  # the first one opens the database


def _idle_share(pool: LivePool, seconds: int) -> float:
    """CPU seconds of all processes a second."""
    pids = pool.processes()
    before, begun = total_cpu(pids), time.monotonic()
    time.sleep(seconds)
    return (total_cpu(pids) - before) / (time.monotonic() - begun)
