"""A bare loop over a backend: fetch some, ack them, no pool and no handler."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from bench.programs import answer
from bench.samples.preload import Meter, preload
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Ack


def run(url: str, batch: int, jobs: int, broker_pid: int = 0) -> dict[str, Any]:
    """Preload `jobs`, then fetch and ack all of them, `batch` at a time; what that took."""
    queue = f"bench-{secrets.token_hex(4)}"
    with contextlib.closing(open_backend(url)) as backend:
        preload(backend, [JobDefinition("noop", {}, queue=queue)] * jobs)
        meter = Meter(broker_pid)
        _work(backend, queue, batch, jobs)
        return meter.read(jobs)


def _work(backend: QueueBackend, queue: str, batch: int, jobs: int) -> None:
    left = jobs
    while left > 0:
        leases = backend.fetch_many(queue, limit=batch)
        left -= len(leases)
        backend.settle_many([(lease, Ack()) for lease in leases])


if __name__ == "__main__":
    answer(run)
