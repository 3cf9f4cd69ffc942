"""The memory of a child alone, and of everything together; and of peers with as many workers and the same app."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from bench import app_data, servers
from bench.figures import Figure, Section, Target, median
from bench.live_pool import QUEUE, LivePool, live_pool, wait_for
from bench.peers import environment, fleet, running
from bench.plan import Plan
from bench.processes import MIB, memory, total_share
from bench.programs import sample
from bench.rounds import Contestants, interleaved
from bench.servers import Server
from jobpool.message.definition import JobDefinition

TITLE = "16 idle children, an app with 30 MB of preloaded data (smaps_rollup)"
WORKERS = 16
POOL = "pool"
PEERS = ("celery", "dramatiq", "huey", "Pebble")
EVERYTHING = "everything, proportional set size"


def run(plan: Plan) -> Section:
    """Measure before the first job, and after some; handlers allocate nothing, so all is the pool's."""
    jobs = plan.pick(5000, 2000, 200)  # a process of Dramatiq fetches 64 ahead, and each must have one
    contestants: dict[str, Any] = {POOL: partial(_pool, plan, jobs)}
    with ExitStack() as stack:
        if plan.peers:
            environment.ensure()
            server = stack.enter_context(servers.redis(stack.enter_context(plan.scratch())))
            contestants |= _peers(plan, server, jobs)
        samples = interleaved(contestants, plan.turns(3, 1))
    own = samples.pop(POOL)
    figures = [figure for when in own[0] for figure in _figures([found[when] for found in own], when)]
    figures += [
        median(f"{name}: {EVERYTHING}, {_after(jobs)}", "MB", [found["share"] / 1e6 for found in each])
        for name, each in samples.items()
    ]
    return Section("memory", TITLE, figures, [environment.versions(PEERS if plan.peers else ())])


def _after(jobs: int) -> str:
    return f"after {jobs} jobs"


def _pool(plan: Plan, jobs: int) -> dict[str, Any]:
    """Return what was measured when."""
    with live_pool(plan, WORKERS, "bench.data_app") as pool:
        found = {"new": _sizes(pool)}
        pool.jobs.enqueue_many([JobDefinition("noop", {}, queue=QUEUE)] * jobs)
        wait_for(lambda: pool.board.header.read().succeeded >= jobs or None, "all jobs done")
        return found | {_after(jobs): _sizes(pool)}


def _sizes(pool: LivePool) -> dict[str, list[float]]:
    return {
        "child": [memory(pid).own / MIB for pid in pool.children()],
        "master": [memory(pool.processes()[0]).own / MIB],
        "everything": [total_share(pool.processes()) / 1e6],
    }


def _figures(rounds: list[dict[str, list[float]]], when: str) -> list[Figure]:
    child, master, everything = ([size for found in rounds for size in found[key]] for key in rounds[0])
    return [
        median(f"private memory of a child, {when}", "MiB", child, Target("≤", 8)),
        median(f"private memory of the master, {when}", "MiB", master),
        median(f"{EVERYTHING}, {when}", "MB", everything, Target("≤", 170)),
    ]


def _peers(plan: Plan, server: Server, jobs: int) -> Contestants:
    asked = {app_data.VARIABLE: "1"}
    workers = plan.pick(WORKERS, WORKERS, 2)

    def queue(peer: fleet.Peer) -> dict[str, Any]:
        with plan.scratch() as directory:
            return running.measure(
                replace(peer, environment={**peer.environment, **asked}), server, workers, jobs, directory
            )

    def local(kind: str) -> dict[str, Any]:
        options = {"do": "measure", "kind": kind, "workers": workers, "jobs": jobs}
        return sample("peers.pools", python=environment.program("python"), environment=asked, **options)

    return {
        "Celery": partial(queue, fleet.CELERY),
        "Dramatiq": partial(queue, fleet.DRAMATIQ),
        "Huey": partial(queue, fleet.HUEY),
        "Pebble": partial(local, "pebble"),
        "executor": partial(local, "executor"),
    }
