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

from bench import marks
from bench.processes import family, total_cpu
from bench.programs import answer

Submit = Callable[[], "Future[None]"]


def run(kind: str, workers: int, jobs: int) -> dict[str, Any]:
    """Hand over all jobs; then from the opening of the gate to the end of the last one.

    Args:
        kind: `pebble` or `executor`.
        workers: Processes.
        jobs: How many.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.closing(marks.Marks(Path(directory) / "marks")) as found,
    ):
        os.environ[marks.VARIABLE] = str(found.path)
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
    return {"seconds": seconds, "rate": jobs / seconds, "workers": own * 1000 / jobs}


@contextmanager
def _pebble(workers: int) -> Iterator[Submit]:
    from pebble import ProcessPool

    with ProcessPool(max_workers=workers) as pool:
        yield lambda: pool.schedule(marks.count)


@contextmanager
def _executor(workers: int) -> Iterator[Submit]:
    with ProcessPoolExecutor(workers) as executor:
        yield lambda: executor.submit(marks.count)


_KINDS = {"pebble": _pebble, "executor": _executor}


if __name__ == "__main__":
    answer(run)
