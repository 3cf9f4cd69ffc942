"""Dispatch of no-op jobs side by side: the pool, its ceiling, and the standard library's executor, in one run.

The contestants take turns, and what is compared is compared within one round: so a busy machine disturbs all alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bench.figures import Section, Target, median, ratio
from bench.plan import Plan
from bench.programs import sample
from bench.throughput import cpu_split

TITLE = "no-op jobs, side by side"
KEY = "bench-key-of-some-length"
CHUNK = 100
MOST_AHEAD = 64
"""Frames that one socket certainly takes."""

Samples = dict[str, list[dict[str, Any]]]


def run(plan: Plan) -> Section:
    """Interleaved rounds; medians, and ratios within the rounds."""
    samples: Samples = {}
    for turn in range(plan.turns()):
        _round(plan, turn, samples)
    rates = {name: [found["rate"] for found in each] for name, each in samples.items()}
    memory, submit = rates["pool, memory://"], rates["executor, submit"]
    figures = [median(name, "jobs/s", each) for name, each in rates.items()]
    figures += [
        ratio("memory:// / ceiling", memory, rates["ceiling"], Target("≥", 0.6)),
        ratio("memory:// / bare ceiling", memory, rates["ceiling, bare sockets"]),
        ratio("memory:// / executor", memory, submit, Target(">", 1.0)),
        ratio("sqlite:// / executor", rates["pool, sqlite://"], submit, Target("≥", 0.7)),
        ratio("sqlite:// signed / executor", rates["pool, sqlite:// signed"], submit, Target("≥", 0.7)),
    ]
    figures += [figure for name, each in samples.items() for figure in cpu_split(name, each)]
    held = [found["held"] for found in samples["pool, memory://"]]
    figures.append(median("messages held by the pool, memory://", "", held))
    return Section("dispatch", TITLE, figures)


def _round(plan: Plan, turn: int, samples: Samples) -> None:
    """One sample of each contestant; each round begins with another one."""
    names = list(_CONTESTANTS)
    first = turn % len(names)
    depth = _depth(plan, samples)
    for name in names[first:] + names[:first]:
        found = _CONTESTANTS[name](plan, depth)
        samples.setdefault(name, []).append(found)
    order = {name: samples[name] for name in names}
    samples.clear()
    samples.update(order)


def _depth(plan: Plan, samples: Samples) -> int:
    """As many frames for a child as the pool holds messages for one; in the first round a fair guess."""
    held = samples["pool, memory://"][-1]["held"] if samples else 16.0 * plan.workers
    return min(MOST_AHEAD, max(1, math.ceil(held / plan.workers)))


def _memory(plan: Plan, depth: int) -> dict[str, Any]:
    del depth
    return sample("host", url="memory://", workers=plan.workers, jobs=plan.noops())


def _sqlite(key: str) -> Callable[[Plan, int], dict[str, Any]]:
    def contest(plan: Plan, depth: int) -> dict[str, Any]:
        del depth
        with plan.sqlite() as url:
            return sample("host", url=url, workers=plan.workers, jobs=plan.noops(), key=key)

    return contest


def _ceiling(bare: bool) -> Callable[[Plan, int], dict[str, Any]]:
    return lambda plan, depth: sample("ceiling", workers=plan.workers, jobs=plan.noops(), depth=depth, bare=bare)


def _executor(chunk: int) -> Callable[[Plan, int], dict[str, Any]]:
    return lambda plan, _: sample("executor", workers=plan.workers, jobs=plan.noops(), chunk=chunk)


_CONTESTANTS: dict[str, Callable[[Plan, int], dict[str, Any]]] = {
    "pool, memory://": _memory,
    "ceiling": _ceiling(bare=False),
    "ceiling, bare sockets": _ceiling(bare=True),
    "executor, submit": _executor(0),
    "pool, sqlite://": _sqlite(""),
    "pool, sqlite:// signed": _sqlite(KEY),
    f"executor, map in chunks of {CHUNK}": _executor(CHUNK),
}
