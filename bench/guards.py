"""The cost of guards: the same no-op jobs, plain and with each kind of guard, by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from bench import servers
from bench.figures import Figure, Section, median, ratio
from bench.plan import Plan
from bench.programs import sample
from bench.throughput import rates

TITLE = "preloaded no-op jobs, plain and guarded, on each broker by turns"
NOTES = [
    "A guarded job asks the broker for its key or place in one more call a fetch, and its ack writes more. The limits"
    " are too high to bind: what is measured is the asking. Ratios are taken within a round."
]
PLAIN = "plain"
HIGH = 1_000_000
KINDS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "idempotency keys": {"keyed": True},
    "concurrency limit": {"limits": {"concurrency_limits": HIGH}},
    "rate limit": {"limits": {"rate_limits": HIGH}},
}

Place = Callable[[], AbstractContextManager[str]]


def run(plan: Plan) -> Section:
    """Run all brokers and kinds, interleaved."""
    samples: dict[tuple[str, str], list[dict[str, Any]]] = {}
    jobs = plan.jobs or plan.pick(20_000, 5_000, 100)
    with brokers_of(plan) as brokers:
        for _ in range(plan.turns(3)):
            for broker, (place, pids) in brokers.items():
                for kind, spec in KINDS.items():
                    with place() as url:
                        found = sample(
                            "samples.pool", url=url, workers=plan.workers, jobs=jobs, broker_pids=pids, **spec
                        )
                    samples.setdefault((broker, kind), []).append(found)
    return Section("guards", TITLE, _figures(samples), NOTES)


@contextmanager
def brokers_of(plan: Plan) -> Iterator[dict[str, tuple[Place, tuple[int, ...]]]]:
    """Yield, by name, how to come to an empty place in each broker, and its processes."""
    with servers.both(plan) as found:
        yield {"SQLite": (plan.sqlite, ())} | {name: (one.fresh, (one.pid,)) for name, one in found.items()}


def _figures(samples: dict[tuple[str, str], list[dict[str, Any]]]) -> list[Figure]:
    figures: list[Figure] = []
    for (broker, kind), found in samples.items():
        name = f"{broker}, {kind}"
        plain = samples[broker, PLAIN]
        if kind == PLAIN:
            figures += rates(name, found)
            continue
        figures.append(median(name, "jobs/s", [one["rate"] for one in found]))
        figures.append(ratio(f"{name} / plain", _column(found, "rate"), _column(plain, "rate")))
        more = [(_cpu(one) - _cpu(other)) for one, other in zip(found, plain, strict=True)]
        figures.append(median(f"{name}: CPU above plain, all processes", "s/1000", more))
    return figures


def _column(found: list[dict[str, Any]], name: str) -> list[float]:
    return [one[name] for one in found]


def _cpu(found: dict[str, Any]) -> float:
    return float(found["master"] + found["children"] + found["broker"])
