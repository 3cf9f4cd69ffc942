"""One sample of a contestant, on an empty place of a server: a pool, its peers, pools without a broker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from bench.figures import Figure, Target, median
from bench.job_counters import VARIABLE, JobCounters
from bench.peers import environment, running
from bench.peers.fleet import Peer
from bench.plan import Plan
from bench.programs import sample
from bench.rounds import Samples
from bench.servers import Server

KEY = "bench-key-of-some-length"

Contest = Callable[[], dict[str, Any]]


def pool(plan: Plan, server: Server, jobs: int) -> dict[str, Any]:
    """Run a pool over signed messages. Its handler counts as the peers' do, with an open gate."""
    with (
        plan.scratch() as scratch,
        server.fresh() as url,
        contextlib.closing(JobCounters(scratch / "counters")) as counters,
    ):
        counters.open_gate()
        return sample(
            "samples.pool",
            environment={VARIABLE: str(counters.path)},
            url=url,
            workers=plan.workers,
            jobs=jobs,
            handler="counted",
            key=KEY,
            broker_pids=(server.pid,),
        )


def peer(plan: Plan, server: Server, which: Peer, jobs: int) -> dict[str, Any]:
    """Run workers of a peer."""
    with plan.scratch() as scratch:
        return running.measure(which, server, plan.workers, jobs, scratch)


def local(plan: Plan, kind: str, jobs: int) -> dict[str, Any]:
    """Run a pool of processes without a broker."""
    python = environment.program("python")
    return sample("peers.pools", python=python, do="measure", kind=kind, workers=plan.workers, jobs=jobs)


def loop(server: Server, batch: int, jobs: int) -> dict[str, Any]:
    """Run one process that fetches and acks, `batch` messages a call: a backend with nothing around it."""
    with server.fresh() as url:
        return sample("samples.backend_loop", url=url, batch=batch, jobs=jobs, broker_pid=server.pid)


def costs(samples: Samples, target: Target | None = None) -> list[Figure]:
    """Return CPU seconds a thousand jobs, of workers and server; the target is for the first name in `samples`."""
    figures = []
    for name, each in samples.items():
        figures.append(median(f"{name}: CPU workers", "s/1000", [found["workers"] for found in each], target))
        target = None
        parts = [part for part in ("master", "children", "client", "server") if part in each[0]]
        figures += [median(f"{name}: CPU {part}", "s/1000", [found[part] for found in each]) for part in parts]
    return figures
