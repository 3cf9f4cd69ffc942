"""A backend seen through a gate and a stop-watch, for a pool that knows nothing of either.

While the gate is closed every fetch comes back empty. So all children are ready before the first job is leased, and no
process start is in the figures. The watch runs from the call of the first fetch that brought a job to the return of the
last settlement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jobpool.broker.backend import QueueBackend
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement

R = TypeVar("R")


class TimedBackend:
    """A backend that passes everything on to `backend`.

    Args:
        backend: The real one.
        jobs: After this many accepted settlements `done` is set.

    Attributes:
        begun, ended: CLOCK_MONOTONIC seconds.
        begun_cpu, ended_cpu: CPU seconds of this process at those moments.
        broker_cpu: CPU seconds that threads of this process have spent inside backend calls, from `begun` on. For an
            embedded broker that is all of it, for a server its client library.
        calls: Name of a call → how often it was made, from `begun` on.
        done: Set at `ended`.
    """

    def __init__(self, backend: QueueBackend, jobs: int) -> None:
        self._backend = backend
        self._left = jobs
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._held = 0
        self._held_since = 0.0
        self._held_seconds = 0.0
        self.begun = self.ended = self.begun_cpu = self.ended_cpu = self.broker_cpu = 0.0
        self.calls: dict[str, int] = {}
        self.done = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def open(self) -> None:
        """Let the jobs out."""
        self._open.set()

    @property
    def mean_held(self) -> float:
        """Messages leased and not settled, on average over the run."""
        return self._held_seconds / max(1e-9, self.ended - self.begun)

    def fetch_many(self, queue: str, **options: Any) -> list[JobLease]:
        if not self._open.is_set():
            return []
        wall, cpu = time.monotonic(), time.process_time()
        leases = self._timed("fetch", lambda: self._backend.fetch_many(queue, **options))
        if leases:
            with self._lock:
                if not self.begun:
                    self.begun, self.begun_cpu, self._held_since = wall, cpu, wall
                self._holds(len(leases))
        return leases

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        if not self._open.is_set():
            self._open.wait(timeout)
            return None
        return self._timed("wait", lambda: self._backend.wait_any(queues, timeout))

    def settle_many(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        answers = self._timed("settle", lambda: self._backend.settle_many(settlements, call_id))
        with self._lock:
            self._holds(-len(answers))
            self._left -= sum(map(bool, answers))
            if self._left <= 0 and not self.ended:
                self.ended, self.ended_cpu = time.monotonic(), time.process_time()
                self.done.set()
        return answers

    def _holds(self, more: int) -> None:
        now = time.monotonic()
        self._held_seconds += self._held * (now - self._held_since)
        self._held += more
        self._held_since = now

    def _timed(self, name: str, call: Callable[[], R]) -> R:
        cpu = time.thread_time()
        try:
            return call()
        finally:
            spent = time.thread_time() - cpu
            with self._lock:
                if not self.ended:
                    self.broker_cpu += spent
                    self.calls[name] = self.calls.get(name, 0) + 1
