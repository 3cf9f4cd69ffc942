"""greenstalk alone: the commands that a delivery costs, by several connections, one thread each."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import greenstalk

from bench.programs import answer
from bench.samples.preload import Meter, preload
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition

TUBE = "bare"


def run(url: str, connections: int, jobs: int, broker_pid: int = 0) -> dict[str, Any]:
    """Put what a pool would find there, then reserve, look at and delete every job; what that took."""
    host, port, tube = _place(url)
    with contextlib.closing(open_backend(url)) as backend:
        preload(backend, [JobDefinition("noop", {}, queue=TUBE)] * jobs)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(connections) as threads:
        clients = [stack.enter_context(greenstalk.Client((host, port), watch=tube)) for _ in range(connections)]
        meter = Meter(broker_pid)
        done = sum(threads.map(_work, clients))
        found = meter.read(jobs)
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs were there")
    return found


def _place(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    prefix = parts.query.partition("tube_prefix=")[2].partition("&")[0]
    return str(parts.hostname), int(parts.port or 11300), prefix + TUBE


def _work(client: greenstalk.Client[str]) -> int:
    done = 0
    while True:
        try:
            job = client.reserve(timeout=0)
        except greenstalk.TimedOutError:
            return done
        client.stats_job(job)
        client.delete(job)
        done += 1


if __name__ == "__main__":
    answer(run)
