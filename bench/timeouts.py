"""A handler that hangs in C code: when it is dead, and when its place is filled again."""

from __future__ import annotations

from bench.apps import TEST_TIMEOUT
from bench.figures import Section, Target, percentile
from bench.livepool import LivePool, death_of, live_pool
from bench.plan import Plan

TITLE = f"hang in C, timeout {TEST_TIMEOUT:g} s, grace 1 s: from the handler's first line"
WORKERS = 2


def run(plan: Plan) -> Section:
    """Hang two at a time, so that both cores are busy when the pool has to act."""
    deaths: list[float] = []
    replacements: list[float] = []
    with live_pool(plan, WORKERS) as pool:
        for turn in range(plan.pick(12, 2)):
            for dead, ready in _hang(pool, turn):
                deaths.append(dead)
                replacements.append(ready)
    return Section(
        "timeouts",
        TITLE,
        [
            percentile("dead", "s", deaths, 50),
            percentile("dead", "s", deaths, 99, Target("≤", 2.5)),
            percentile("successor ready", "s", replacements, 50),
            percentile("successor ready", "s", replacements, 99, Target("≤", 2.5)),
        ],
    )


def _hang(pool: LivePool, turn: int) -> list[tuple[float, float]]:
    """Return seconds from each handler's first line to its death, and to its successor's readiness."""
    for _ in range(WORKERS):
        pool.enqueue("hang", path=str(pool.notes))
    lines = pool.lines((turn + 1) * WORKERS)[-WORKERS:]
    begun = [(int(pid), float(at)) for pid, at in lines]
    watched = [(pid, at, pool.slot_of(pid), death_of(pid)) for pid, at in begun]
    found = [(ended() - at, pool.ready_after(slot, pid) - at) for pid, at, slot, ended in watched]
    pool.wait_ready(WORKERS)
    return found
