"""A bare loop over a backend: fetch some, ack them, no pool and no handler."""

from __future__ import annotations

import secrets
import time
from typing import Any

from bench.processes import family_seconds
from bench.programs import answer
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Ack

BATCH = 1000


def run(url: str, batch: int, jobs: int, broker_pid: int = 0) -> dict[str, Any]:
    """Preload `jobs`, then fetch and ack all of them, `batch` at a time; what that took."""
    backend = open_backend(url)
    queue = f"bench-{secrets.token_hex(4)}"
    try:
        for begin in range(0, jobs, BATCH):
            backend.enqueue_many([JobDefinition("noop", {}, queue=queue)] * min(BATCH, jobs - begin))
        server, own, begun = _server(broker_pid), time.process_time(), time.monotonic()
        _work(backend, queue, batch, jobs)
        seconds = time.monotonic() - begun
        own, server = time.process_time() - own, _server(broker_pid) - server
    finally:
        backend.close()
    thousands = jobs / 1000
    return {"seconds": seconds, "rate": jobs / seconds, "workers": own / thousands, "server": server / thousands}


def _work(backend: QueueBackend, queue: str, batch: int, jobs: int) -> None:
    left = jobs
    while left > 0:
        leases = backend.fetch_many(queue, limit=batch)
        left -= len(leases)
        backend.settle_many([(lease, Ack()) for lease in leases])


def _server(pid: int) -> float:
    return family_seconds(pid) if pid else 0.0


if __name__ == "__main__":
    answer(run)
