"""The cost of fetch, settle and reap beside a million messages, against that beside a thousand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench import servers
from bench.figures import Figure, Section, Target, median
from bench.plan import Plan
from bench.programs import sample
from bench.samples.cycles import VERBS

TITLE = "ten messages fetched, acked or reaped beside very many others, on two stores by turns"
STATES = ("waiting", "delayed", "dead")
BATCH = 10
BLOCKS = 10
WRITERS = 2
TARGET = Target("≤", 1.5)
NOTES = ["The ratio is of the medians; its lowest and highest are those of ten blocks of samples, one after the other."]


def run(plan: Plan) -> Section:
    """Measure each broker and each state anew."""
    figures: list[Figure] = []
    with servers.both(plan) as brokers:
        for name, server in brokers.items():
            for state in STATES:
                figures += _compare(plan, name, state, server)
    return Section("scale", TITLE, figures, NOTES)


def _compare(plan: Plan, name: str, state: str, server: servers.Server) -> list[Figure]:
    few, many = plan.pick(1000, 1000, 100), plan.pick(1_000_000, 50_000, 1000)
    with server.fresh() as url:
        stores = servers.two_stores(server, url)
        _fill(stores[0], state, few, 1)
        _fill(stores[1], state, many, WRITERS)
        server.settle_down(url)
        found = sample("samples.cycles", urls=stores, cycles=plan.pick(300, 100, BLOCKS), batch=BATCH)
    small, large = found["spent"]
    figures = []
    for verb in VERBS:
        figures.append(median(f"{name}, {many:,} {state}: {verb}", "ms", large[verb]))
        figures.append(of_medians(f"{name}, {many:,} / {few:,} {state}: {verb}", large[verb], small[verb]))
    return figures


def _fill(url: str, state: str, count: int, writers: int) -> None:
    """Fill a store with several processes, because one does not keep a server busy."""
    with ThreadPoolExecutor(writers) as pool:
        share = partial(sample, "samples.fill_queue", url=url, state=state, count=count // writers)
        for done in [pool.submit(share) for _ in range(writers)]:
            done.result()


def of_medians(name: str, above: Sequence[float], below: Sequence[float]) -> Figure:
    """Return a ratio of the medians of all samples, which some slow ones do not move."""
    size = max(1, len(above) // BLOCKS)
    parts = [slice(begin, begin + size) for begin in range(0, size * BLOCKS, size)]
    blocks = [statistics.median(above[part]) / statistics.median(below[part]) for part in parts]
    value = statistics.median(above) / statistics.median(below)
    return Figure(name, value, "", min(blocks), max(blocks), len(above), TARGET)
