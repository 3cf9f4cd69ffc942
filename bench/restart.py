"""A handler that dies by SIGSEGV: when its place is filled, and when its message can be had again."""

from __future__ import annotations

from bench.figures import Section, Target, percentile
from bench.live_pool import LivePool, live_pool
from bench.plan import Plan

TITLE = "crash of a child (SIGSEGV), idle pool of 2 on SQLite: from the moment before the signal"
WORKERS = 2


def run(plan: Plan) -> Section:
    """Make one crash after the other."""
    successors: list[float] = []
    returns: list[float] = []
    with live_pool(plan, WORKERS) as pool:
        for turn in range(plan.pick(60, 10)):
            successor, again = _crash(pool, turn)
            successors.append(successor * 1e3)
            returns.append(again * 1e3)
    return Section(
        "restart",
        TITLE,
        [
            percentile("successor ready", "ms", successors, 50),
            percentile("successor ready", "ms", successors, 99, Target("≤", 100)),
            percentile("message runs again", "ms", returns, 50),
            percentile("message runs again", "ms", returns, 99, Target("≤", 500)),
        ],
        [
            "`message runs again` is later than `can be fetched again`: it holds the crash back-off, which is drawn at "
            "random, the fetch and the start.",
        ],
    )


def _crash(pool: LivePool, turn: int) -> tuple[float, float]:
    """Return seconds from the crash to the successor's readiness, and to the second start of the same message."""
    pool.enqueue("crash", path=str(pool.notes))
    _, _, pid, at = pool.lines(2 * turn + 1)[2 * turn]
    slot = pool.slot_of(int(pid))
    successor = pool.ready_after(slot, int(pid))
    _, _, _, again = pool.lines(2 * turn + 2)[2 * turn + 1]
    pool.wait_ready(WORKERS)
    return successor - float(at), float(again) - float(at)
