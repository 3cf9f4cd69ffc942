"""The ideal: the same work in bare processes, one a core, with no pool around it."""

from __future__ import annotations

import multiprocessing
import resource
import time
from multiprocessing.synchronize import Barrier
from typing import Any

from bench.cpu_work import burn
from bench.programs import answer


def _work(start: Barrier, loops: int, jobs: int) -> None:
    start.wait()
    for _ in range(jobs):
        burn(loops)


def run(processes: int, jobs: int, loops: int) -> dict[str, Any]:
    """Share out `jobs` evenly; measure from the common start to the last one's end."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(processes + 1)
    workers = [context.Process(target=_work, args=(start, loops, jobs // processes)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    start.wait()
    begun = time.monotonic()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - begun
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "cpu": spent.ru_utime + spent.ru_stime}


if __name__ == "__main__":
    answer(run)
