"""One run of a pool over preloaded jobs, in this process, timed from the first fetch to the last settlement.

The pool itself runs (`run_pool`): master, fork server, children, and any backend. It is stopped by a signal, as any
pool is, so no mode of its own shapes the run.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from bench import mixed_jobs, programs
from bench.processes import family_seconds, thread_seconds, total_cpu
from bench.programs import ROOT, answer
from bench.samples.preload import preload
from bench.samples.timed_backend import TimedBackend
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master.run import run_pool
from jobpool.message.definition import JobDefinition
from jobpool.message.signing import EnvelopeSigner
from jobpool.settings import Settings


def run(
    url: str,
    workers: int,
    jobs: int,
    handler: str = "noop",
    payload: dict[str, Any] | None = None,
    key: str = "",
    broker_pids: tuple[int, ...] = (),
    keyed: bool = False,
    limits: dict[str, int] | None = None,
    mix: mixed_jobs.Mix = (),
    notes: str = "",
) -> dict[str, Any]:
    """Preload `jobs`, run the pool until they are settled, and return what that took.

    Args:
        url: Of the backend; a queue of a fresh name is used in it.
        workers: Children.
        jobs: How many.
        handler: Of bench/apps.py.
        payload: Of each job.
        key: Signs and verifies; "" = unsigned.
        broker_pids: Of a broker that is a server: their CPU time, and that of all below them, is the broker's.
        keyed: Each job has an idempotency key of its own.
        limits: Setting of the pool → the queue's limit.
        mix: The jobs sleep, instead of what `handler` does, for times of this mix.
        notes: File for the naps of a mix.
    """
    keys = (key,) if key else ()
    queue = f"bench-{secrets.token_hex(4)}"
    backend = open_backend(url, signer=EnvelopeSigner(list(keys) or None))
    try:
        if mix:
            preload(backend, _naps(mix, jobs, notes, queue))
        else:
            preload(backend, _alike(JobDefinition(handler, payload or {}, queue=queue), jobs, keyed))
        watched = TimedBackend(backend, jobs)
        observer = _Observer(watched, workers, tuple(broker_pids))
        settings = Settings(
            queues=((queue, 1.0),),
            backend=url,
            apps=("bench.apps",),
            workers=workers,
            signing_key=keys,
            sys_path=(str(ROOT),),
            **{name: {queue: most} for name, most in (limits or {}).items()},  # type: ignore[arg-type]
        )
        run_pool(settings, backend=cast(QueueBackend, watched), on_start=observer.start)
        observer.join()
    finally:
        backend.close()
    used = mixed_jobs.share_used(Path(notes), workers) if mix else 0.0
    return observer.findings(jobs) | {"used": used}


def _alike(job: JobDefinition, jobs: int, keyed: bool) -> Iterator[JobDefinition]:
    for number in range(jobs):
        yield job.with_idempotency_key(f"key {number}") if keyed else job


def _naps(mix: mixed_jobs.Mix, jobs: int, notes: str, queue: str) -> Iterator[JobDefinition]:
    for seconds in mixed_jobs.lengths(mix, jobs):
        yield JobDefinition("nap", {"path": notes, "seconds": seconds}, queue=queue)


class _Observer:
    """A thread beside the pool: opens the gate when every child is ready, reads CPU times, and ends the pool."""

    def __init__(self, watched: TimedBackend, workers: int, broker_pids: tuple[int, ...]) -> None:
        self._watched = watched
        self._workers = workers
        self._broker_pids = broker_pids
        self._thread: threading.Thread | None = None
        self._children_cpu = self._server_cpu = 0.0
        self._threads: dict[str, float] = {}

    def start(self, board: Scoreboard) -> None:
        self._thread = threading.Thread(target=self._watch, args=(board,), name="observer", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for its end; it has none when the pool ended by itself."""
        if self._thread is not None:
            self._thread.join(1.0)

    def _watch(self, board: Scoreboard) -> None:
        while board.header.read().ready < self._workers:
            time.sleep(0.005)
        children = [board.slot(index).child.read().pid for index in range(self._workers)]
        before = _own_threads()
        children_before, server_before = total_cpu(children), self._servers()
        self._watched.open()
        self._watched.done.wait()
        self._children_cpu = total_cpu(children) - children_before
        self._server_cpu = self._servers() - server_before
        self._threads = {name: spent - before.get(name, 0.0) for name, spent in _own_threads().items()}
        os.kill(os.getpid(), signal.SIGTERM)

    def _servers(self) -> float:
        return sum(map(family_seconds, self._broker_pids))

    def findings(self, jobs: int) -> dict[str, Any]:
        """Return seconds, and CPU in seconds for a thousand jobs."""
        watched = self._watched
        if not watched.ended:
            raise programs.SampleFailed("the pool ended before its jobs did")
        seconds = watched.ended - watched.begun
        master = watched.ended_cpu - watched.begun_cpu - watched.broker_cpu
        thousands = jobs / 1000
        return {
            "seconds": seconds,
            "rate": jobs / seconds,
            "master": master / thousands,
            "broker": (watched.broker_cpu + self._server_cpu) / thousands,
            "children": self._children_cpu / thousands,
            "client": watched.broker_cpu / thousands,
            "server": self._server_cpu / thousands,
            "workers": (master + watched.broker_cpu + self._children_cpu) / thousands,
            "threads": {name: spent / thousands for name, spent in self._threads.items()},
            "held": watched.mean_held,
            "calls": watched.calls,
        }


def _own_threads() -> dict[str, float]:
    names: dict[int | None, str] = {thread.native_id: thread.name for thread in threading.enumerate()}
    return {names[ident]: spent for ident, spent in thread_seconds(os.getpid()).items() if ident in names}


if __name__ == "__main__":
    answer(run)
