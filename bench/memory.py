"""The memory of a child alone, and of everything together."""

from __future__ import annotations

from bench.figures import Figure, Section, Target, median
from bench.livepool import QUEUE, LivePool, live_pool, wait_for
from bench.plan import Plan
from bench.processes import MIB, memory
from jobpool.message.definition import JobDefinition

TITLE = "16 idle children, an app with 30 MB of preloaded data (smaps_rollup)"
WORKERS = 16


def run(plan: Plan) -> Section:
    """Measure before the first job, and after some; handlers allocate nothing, so all is the pool's."""
    with live_pool(plan, WORKERS, "bench.dataapp") as pool:
        figures = _figures(pool, "new")
        jobs = plan.pick(5000, 1000, 20)
        pool.jobs.enqueue_many([JobDefinition("noop", {}, queue=QUEUE)] * jobs)
        wait_for(lambda: pool.board.header.read().succeeded >= jobs or None, "all jobs done")
        figures += _figures(pool, f"after {jobs} jobs")
    return Section("memory", TITLE, figures)


def _figures(pool: LivePool, when: str) -> list[Figure]:
    children = [memory(pid).own / MIB for pid in pool.children()]
    everything = sum(memory(pid).share for pid in pool.processes()) / 1e6
    master = memory(pool.processes()[0]).own / MIB
    return [
        median(f"private memory of a child, {when}", "MiB", children, Target("≤", 8)),
        median(f"private memory of the master, {when}", "MiB", [master]),
        median(f"everything, proportional set size, {when}", "MB", [everything], Target("≤", 170)),
    ]
