"""The jobs that a program without a pool finds in its queue, and the meter of what they cost it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

from bench.processes import family_seconds
from jobpool.broker.backend import QueueBackend
from jobpool.message.definition import JobDefinition

BATCH = 1000


def preload(backend: QueueBackend, jobs: Iterable[JobDefinition]) -> None:
    """Enqueue all of them, a thousand a call."""
    left = iter(jobs)
    while some := list(islice(left, BATCH)):
        backend.enqueue_many(some)


class Meter:
    """Time, and CPU time of this process and of the broker's, from when it is made. `broker_pid` 0 = no process."""

    def __init__(self, broker_pid: int) -> None:
        self._broker_pid = broker_pid
        self._server, self._own, self._begun = self._broker(), time.process_time(), time.monotonic()

    def read(self, jobs: int, ended: float | None = None) -> dict[str, Any]:
        """Return seconds, jobs a second, and CPU in seconds for a thousand jobs; `ended`: None = now."""
        seconds = (ended or time.monotonic()) - self._begun
        own, server = time.process_time() - self._own, self._broker() - self._server
        thousands = jobs / 1000
        return {"seconds": seconds, "rate": jobs / seconds, "workers": own / thousands, "server": server / thousands}

    def _broker(self) -> float:
        return family_seconds(self._broker_pid) if self._broker_pid else 0.0
