"""greenstalk alone: the commands that a delivery costs, by several connections, one thread each."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import greenstalk

from bench.processes import family_seconds
from bench.programs import answer
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition

BATCH = 1000
TUBE = "bare"


def run(url: str, connections: int, jobs: int, broker_pid: int = 0) -> dict[str, Any]:
    """Put what a pool would find there, then reserve, look at and delete every job; what that took."""
    host, port, tube = _place(url)
    _preload(url, jobs)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(connections) as threads:
        clients = [stack.enter_context(greenstalk.Client((host, port), watch=tube)) for _ in range(connections)]
        server, own, begun = family_seconds(broker_pid), time.process_time(), time.monotonic()
        done = sum(threads.map(_work, clients))
        seconds = time.monotonic() - begun
        own, server = time.process_time() - own, family_seconds(broker_pid) - server
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs were there")
    thousands = jobs / 1000
    return {"seconds": seconds, "rate": jobs / seconds, "workers": own / thousands, "server": server / thousands}


def _place(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    prefix = parts.query.partition("tube_prefix=")[2].partition("&")[0]
    return str(parts.hostname), int(parts.port or 11300), prefix + TUBE


def _preload(url: str, jobs: int) -> None:
    backend: QueueBackend = open_backend(url)
    with contextlib.closing(backend):
        for begin in range(0, jobs, BATCH):
            backend.enqueue_many([JobDefinition("noop", {}, queue=TUBE)] * min(BATCH, jobs - begin))


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
