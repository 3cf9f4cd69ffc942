"""The cost of a claim beside leases, and beside very many other claims."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench import servers
from bench.figures import Figure, Section, Target, median, ratio
from bench.plan import Plan
from bench.programs import sample
from bench.samples.claims import BATCH, CLAIM, LEASE
from bench.samples.cycles import Spent
from bench.scale import of_medians

TITLE = f"{BATCH} jobs claimed, renewed and deleted, against {BATCH} leased, renewed and settled"
NOTES = [
    "By turns in one process, on the same store: one call each. `beside … claims`: the same on two stores by turns; the"
    " ratio is of the medians, its lowest and highest those of ten blocks of samples."
]
FEW = 10
WRITERS = 2


def run(plan: Plan) -> Section:
    """Run broker after broker."""
    with plan.sqlite() as few, plan.sqlite() as many:
        figures = _compare(plan, "SQLite", few, many)
    with servers.both(plan) as brokers:
        for name, server in brokers.items():
            with server.fresh() as url:
                figures += _compare(plan, name, *servers.two_stores(server, url))
    return Section("claims", TITLE, figures, NOTES)


def _compare(plan: Plan, name: str, few: str, many: str) -> list[Figure]:
    count = plan.pick(100_000, 5_000, 50)
    for url, claims in ((few, FEW), (many, count)):
        _fill(url, claims)
    small, large = sample("samples.claims", urls=[few, many], cycles=plan.pick(300, 100, 10))["spent"]
    figures = [median(f"{name}: {verb}", "ms", small[verb]) for verb in (*LEASE, *CLAIM)]
    words = f"{name}: {', '.join(CLAIM)} / {', '.join(LEASE)}"
    figures.append(ratio(words, _together(small, CLAIM), _together(small, LEASE), Target("≤", 1.5)))
    figures += [
        of_medians(f"{name}, beside {count:,} / {FEW} claims: {verb}", large[verb], small[verb]) for verb in CLAIM
    ]
    return figures


def _together(spent: Spent, verbs: Sequence[str]) -> list[float]:
    """Return, for each cycle, the time of all these calls."""
    return [sum(parts) for parts in zip(*(spent[verb] for verb in verbs), strict=True)]


def _fill(url: str, claims: int) -> None:
    """Fill a store with two processes, because one does not keep a server busy."""
    share = claims // WRITERS
    with ThreadPoolExecutor(WRITERS) as pool:
        one = partial(sample, "samples.claims", urls=[url], claims=share)
        for done in [pool.submit(one, first=number * share) for number in range(WRITERS)]:
            done.result()
