"""`concurrent.futures.ProcessPoolExecutor` doing nothing: what a Python program has without a queue."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench import mixed_jobs
from bench.programs import answer


def noop(payload: dict[str, Any]) -> None:
    """Do nothing."""


def _by_submit(executor: ProcessPoolExecutor, jobs: int) -> None:
    payload: dict[str, Any] = {}
    for future in [executor.submit(noop, payload) for _ in range(jobs)]:
        future.result()


def _by_map(chunk: int) -> Callable[[ProcessPoolExecutor, int], None]:
    def do(executor: ProcessPoolExecutor, jobs: int) -> None:
        payloads: Sequence[dict[str, Any]] = [{}] * jobs
        for _ in executor.map(noop, payloads, chunksize=chunk):
            pass

    return do


def _of_mix(mix: mixed_jobs.Mix, notes: str) -> Callable[[ProcessPoolExecutor, int], None]:
    def do(executor: ProcessPoolExecutor, jobs: int) -> None:
        for future in [executor.submit(mixed_jobs.nap, notes, seconds) for seconds in mixed_jobs.lengths(mix, jobs)]:
            future.result()

    return do


def run(workers: int, jobs: int, chunk: int = 0, mix: mixed_jobs.Mix = (), notes: str = "") -> dict[str, Any]:
    """Measure `submit` and `result` of each job, or `map` with this chunk size; from the first call to the last
    result. With `mix` the jobs sleep, and `notes` is the file for what share of the workers' time they use.
    """
    do = _of_mix(mix, notes) if mix else _by_map(chunk) if chunk else _by_submit
    with ProcessPoolExecutor(workers) as executor:
        _by_submit(executor, workers * 20)  # the processes are there and warm
        own, begun = time.process_time(), time.monotonic()
        do(executor, jobs)
        seconds = time.monotonic() - begun
        own = time.process_time() - own
    thousands = jobs / 1000
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "rate": jobs / seconds,
        "used": mixed_jobs.share_used(Path(notes), workers) if mix else 0.0,
        "master": own / thousands,
        "children": (children.ru_utime + children.ru_stime) / thousands,
    }


if __name__ == "__main__":
    answer(run)
