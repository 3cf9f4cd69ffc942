"""`python -m bench.peers.pools '{…}'`: pools without a broker, measured as the queues are. A crash loses their jobs."""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import app_data, hanging_jobs, job_counters
from bench.processes import family, total_cpu, total_share
from bench.programs import answer

Submit = Callable[[], "Future[None]"]


TABLE = app_data.made_if_asked()


def run(do: str, **options: Any) -> dict[str, Any]:
    """Do one of the things below: `measure` or `hang`."""
    verbs: dict[str, Callable[..., dict[str, Any]]] = {"measure": _measure, "hang": _hang}
    return verbs[do](**options)


def _measure(kind: str, workers: int, jobs: int) -> dict[str, Any]:
    """Hand over all jobs; then from the opening of the gate to the end of the last one, and the memory of all.

    Args:
        kind: `pebble` or `executor`.
        workers: Processes.
        jobs: How many.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.closing(job_counters.JobCounters(Path(directory) / "counters")) as found,
    ):
        os.environ[job_counters.VARIABLE] = str(found.path)
        with _KINDS[kind](workers) as submit:
            futures = [submit() for _ in range(jobs)]
            while len(found.pids()) < workers:
                time.sleep(0.005)
            pids = family(os.getpid())
            own, begun = total_cpu(pids), found.open_gate()
            for future in futures:
                future.result()
            own = total_cpu(pids) - own
            seconds = found.done()[1] - begun
            share = total_share(pids)
    return {"seconds": seconds, "rate": jobs / seconds, "workers": own * 1000 / jobs, "share": share}


def _hang(turns: int, limit: float) -> dict[str, Any]:
    """Begin jobs in Pebble that hang; seconds from the first line of each to the end of its process."""
    from pebble import ProcessPool

    with tempfile.TemporaryDirectory() as directory, ProcessPool(max_workers=hanging_jobs.AT_ONCE) as pool:
        path = f"{directory}/notes"
        return {
            "dead": hanging_jobs.deaths(
                lambda: pool.schedule(hanging_jobs.hang, args=[path], timeout=hanging_jobs.TIMEOUT), path, turns, limit
            )
        }


@contextmanager
def _pebble(workers: int) -> Iterator[Submit]:
    from pebble import ProcessPool

    with ProcessPool(max_workers=workers) as pool:
        yield lambda: pool.schedule(job_counters.count)


@contextmanager
def _executor(workers: int) -> Iterator[Submit]:
    with ProcessPoolExecutor(workers) as executor:
        yield lambda: executor.submit(job_counters.count)


_KINDS = {"pebble": _pebble, "executor": _executor}


if __name__ == "__main__":
    answer(run)
