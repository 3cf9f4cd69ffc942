"""Jobs of mixed lengths: how much of the workers' time is used while others wait, and how long an urgent one waits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import mixed_jobs, servers
from bench.figures import Figure, Section, Target, median, percentile, ratio
from bench.live_pool import QUEUE, LivePool, live_pool
from bench.plan import Plan
from bench.programs import sample
from bench.rounds import interleaved
from jobpool.message.definition import JobDefinition

TITLE = "jobs of mixed lengths: share of the workers' time that is used while others wait"
MIXES: dict[str, mixed_jobs.Mix] = {
    "3 % of 120 ms among 0.5 ms": [(97, 0.0005), (3, 0.12)],
    "1 % of 500 ms among 0.5 ms": [(99, 0.0005), (1, 0.5)],
    "10 % of 100 ms among 5 ms": [(90, 0.005), (10, 0.1)],
}
TARGETS = {"3 % of 120 ms among 0.5 ms": Target("≥", 0.92)}
WORKERS = (4, 16)
EXECUTOR = "executor"
NOTE = "`executor`: `ProcessPoolExecutor`, which has no broker, no lease and no priorities, and holds all jobs itself."

URGENT_JOB_S = 0.1
LENGTHS_S = 0.07, 0.13
"""Seconds of the jobs that are not urgent, so that children do not end them in step."""
URGENT_WORKERS = 4
URGENT_PRIORITY = 0
GAPS_S = 0.15, 0.35
"""Seconds between two urgent jobs, so that they meet every phase of the others."""

Place = Callable[[], Any]


def run(plan: Plan) -> Section:
    """Run pools and executor by turns; then urgent jobs, among long ones that wait."""
    figures: list[Figure] = []
    with plan.scratch() as scratch, servers.redis(scratch) as server:
        brokers: dict[str, Place] = {"SQLite": plan.sqlite, "Redis": server.fresh}
        for name in MIXES:
            for workers in WORKERS:
                figures += shares(plan, brokers, name, workers)
        for broker, place in brokers.items():
            figures += _urgent(plan, broker, place)
    return Section("mixed", TITLE, figures, [NOTE])


def shares(plan: Plan, brokers: dict[str, Place], name: str, workers: int) -> list[Figure]:
    """Return the share that each uses, of a mix of this name, and the ratios."""
    mix = MIXES[name]
    jobs = plan.jobs or max(20, round(workers * plan.pick(5, 2) * (0.02 if plan.tiny else 1) / mixed_jobs.mean(mix)))
    samples = interleaved(
        {broker: partial(_pool, plan, place, mix, workers, jobs) for broker, place in brokers.items()}
        | {EXECUTOR: partial(_executor, plan, mix, workers, jobs)},
        plan.turns(5),
    )
    used = {who: [found["used"] for found in each] for who, each in samples.items()}
    what = f"{name}, {workers} workers"
    figures = [median(f"{what}: {who}", "", each, TARGETS.get(name)) for who, each in used.items() if who in brokers]
    figures.append(median(f"{what}: {EXECUTOR}", "", used[EXECUTOR]))
    return figures + [ratio(f"{what}: {who} / {EXECUTOR}", used[who], used[EXECUTOR]) for who in brokers]


def _pool(plan: Plan, place: Place, mix: mixed_jobs.Mix, workers: int, jobs: int) -> dict[str, Any]:
    with plan.scratch() as scratch, place() as url:
        return sample("samples.pool", url=url, workers=workers, jobs=jobs, mix=mix, notes=str(scratch / "notes"))


def _executor(plan: Plan, mix: mixed_jobs.Mix, workers: int, jobs: int) -> dict[str, Any]:
    with plan.scratch() as scratch:
        return sample("samples.executor", workers=workers, jobs=jobs, mix=mix, notes=str(scratch / "notes"))


def _urgent(plan: Plan, broker: str, place: Place) -> list[Figure]:
    with place() as url, live_pool(plan, URGENT_WORKERS, broker=url) as pool, _others(plan, pool):
        waits = _waits(pool, plan.pick(100, 20, 2))
    what = f"{broker}, urgent among {URGENT_JOB_S * 1e3:.0f} ms, {URGENT_WORKERS} workers: enqueue → first line"
    return [percentile(what, "ms", waits, rank) for rank in (50, 95)]


@contextmanager
def _others(plan: Plan, pool: LivePool) -> Iterator[None]:
    """Let more jobs wait than can be done while urgent ones come."""
    naps: Path = pool.notes.with_name("naps")
    seconds = plan.pick(100, 20, 2) * sum(GAPS_S) / 2 + 3
    lengths = [random.uniform(*LENGTHS_S) for _ in range(round(seconds * 1.5 * URGENT_WORKERS / URGENT_JOB_S))]
    payloads = [{"path": str(naps), "seconds": length} for length in lengths]
    pool.jobs.enqueue_many([JobDefinition("nap", payload, queue=QUEUE) for payload in payloads])
    time.sleep(0.2 if plan.tiny else 1.0)
    yield


def _waits(pool: LivePool, count: int) -> list[float]:
    """Return milliseconds from the call of enqueue to the first line of each urgent job."""
    called: list[float] = []
    for number in range(count):
        time.sleep(random.uniform(*GAPS_S))
        called.append(time.monotonic())
        payload = {"path": str(pool.notes), "number": number}
        pool.jobs.define("stamp", payload).queue(QUEUE).priority(URGENT_PRIORITY).dispatch()
    begun = {int(number): float(at) for number, at in pool.lines(count)}
    return [(begun[number] - called[number]) * 1e3 for number in range(count)]
