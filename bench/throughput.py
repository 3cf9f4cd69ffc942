"""Jobs a second, and the CPU time that a thousand of them cost, for any backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.cpu_work import loops_for
from bench.figures import Figure, Section, median
from bench.plan import Plan
from bench.programs import sample
from jobpool.broker.opening import redact

TITLE = "preloaded jobs, from the first fetch to the last settlement"
NOTES = [
    "CPU in seconds a thousand jobs, which is milliseconds a job. `broker`: inside backend calls, and its server's."
]
TWENTY_MS = 0.02


def run(plan: Plan) -> Section:
    """Run no-op jobs and 20 ms jobs on each backend, interleaved."""
    loops = loops_for(TWENTY_MS)
    kinds: dict[str, dict[str, Any]] = {
        "no-op": {"handler": "noop", "jobs": plan.noops()},
        "20 ms": {"handler": "burn", "payload": {"loops": loops}, "jobs": plan.pick(400, 100, 4)},
    }
    samples: dict[str, list[dict[str, Any]]] = {}
    for _ in range(plan.turns(3)):
        for name, url in _backends(plan).items():
            for kind, spec in kinds.items():
                with url() as address:
                    found = sample(
                        "samples.pool", url=address, workers=plan.workers, broker_pids=plan.broker_pids, **spec
                    )
                samples.setdefault(f"{name}, {kind}, {plan.workers} workers", []).append(found)
    figures = [figure for name, found in samples.items() for figure in rates(name, found)]
    return Section("throughput", TITLE, figures, NOTES)


def rates(name: str, samples: Sequence[dict[str, Any]]) -> list[Figure]:
    """Return jobs a second, and CPU time by its user."""
    figures = [median(name, "jobs/s", [found["rate"] for found in samples])]
    figures += cpu_split(name, samples)
    return figures


def cpu_split(name: str, samples: Sequence[dict[str, Any]]) -> list[Figure]:
    """Return the CPU time of master, children and broker."""
    parts = [part for part in ("master", "children", "broker") if part in samples[0]]
    return [median(f"{name}: CPU {part}", "s/1000", [found[part] for found in samples]) for part in parts]


def _backends(plan: Plan) -> dict[str, Callable[[], contextlib.AbstractContextManager[str]]]:
    if plan.urls:
        return {redact(url): partial(_as_it_is, url) for url in plan.urls}
    return {"memory://": partial(_as_it_is, "memory://"), "sqlite://": plan.sqlite}


def _as_it_is(url: str) -> contextlib.AbstractContextManager[str]:
    return contextlib.nullcontext(url)
