"""Dispatch of no-op jobs side by side: the pool, its ceiling, and the standard library's executor, in one run."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.contestants import KEY
from bench.figures import Section, Target, median, ratio
from bench.peers import environment
from bench.plan import Plan
from bench.programs import sample
from bench.rounds import Samples, interleaved, rates
from bench.throughput import cpu_split

TITLE = "no-op jobs, side by side"
CHUNK = 100
MOST_AHEAD = 64
"""Frames that one socket certainly takes."""

Contest = Callable[[Plan, int], dict[str, Any]]


def run(plan: Plan) -> Section:
    """Run interleaved rounds; medians, and ratios within the rounds."""
    samples: Samples = {}
    contestants = {name: partial(_contest, contest, plan, samples) for name, contest in _CONTESTANTS.items()}
    rate = rates(interleaved(contestants, plan.turns(), samples))
    memory, submit = rate["pool, memory://"], rate["executor, submit"]
    figures = [median(name, "jobs/s", each) for name, each in rate.items()]
    figures += [
        ratio("memory:// / ceiling", memory, rate["ceiling"], Target("≥", 0.9)),
        ratio("memory:// / bare ceiling", memory, rate["ceiling, bare sockets"]),
        ratio("memory:// / executor", memory, submit, Target(">", 1.0)),
        ratio("sqlite:// / executor", rate["pool, sqlite://"], submit, Target("≥", 0.7)),
        ratio("sqlite:// signed / executor", rate["pool, sqlite:// signed"], submit, Target("≥", 0.7)),
    ]
    figures += [figure for name, each in samples.items() for figure in cpu_split(name, each)]
    held = [found["held"] for found in samples["pool, memory://"]]
    figures.append(median("messages held by the pool, memory://", "", held))
    return Section("dispatch", TITLE, figures, [environment.versions()])


def _contest(contest: Contest, plan: Plan, samples: Samples) -> dict[str, Any]:
    return contest(plan, _depth(plan, samples))


def _depth(plan: Plan, samples: Samples) -> int:
    """Return how many frames a child had ahead in the pool; before its first run a fair guess."""
    pool = samples["pool, memory://"]
    held = pool[-1]["held"] if pool else 16.0 * plan.workers
    return min(MOST_AHEAD, max(1, math.ceil(held / plan.workers)))


def _memory(plan: Plan, depth: int) -> dict[str, Any]:
    del depth
    return sample("samples.pool", url="memory://", workers=plan.workers, jobs=plan.noops())


def _sqlite(key: str) -> Contest:
    def contest(plan: Plan, depth: int) -> dict[str, Any]:
        del depth
        with plan.sqlite() as url:
            return sample("samples.pool", url=url, workers=plan.workers, jobs=plan.noops(), key=key)

    return contest


def _ceiling(bare: bool) -> Contest:
    return lambda plan, depth: sample(
        "samples.ceiling", workers=plan.workers, jobs=plan.noops(), depth=depth, bare=bare
    )


def _executor(chunk: int) -> Contest:
    return lambda plan, _: sample("samples.executor", workers=plan.workers, jobs=plan.noops(), chunk=chunk)


_CONTESTANTS: dict[str, Contest] = {
    "pool, memory://": _memory,
    "ceiling": _ceiling(bare=False),
    "ceiling, bare sockets": _ceiling(bare=True),
    "executor, submit": _executor(0),
    "pool, sqlite://": _sqlite(""),
    "pool, sqlite:// signed": _sqlite(KEY),
    f"executor, map in chunks of {CHUNK}": _executor(CHUNK),
}
