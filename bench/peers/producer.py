"""`python -m bench.peers.producer '{…}'`, in the environment of the peers: whatever a producer does there."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable
from typing import Any

from bench import hanging_jobs
from bench.programs import answer

BATCH = 1000
WARM = 50


def run(app: str, do: str, **options: Any) -> dict[str, Any]:
    """Do one of the things below with a module of this package.

    Args:
        app: Its name.
        do: `preload`, `enqueue`, `stamp` or `hang`.
        options: Of that.
    """
    module: Any = importlib.import_module(f"bench.peers.{app}")
    module.open_(fresh=do != "stamp")
    try:
        return _VERBS[do](module, **options)
    finally:
        module.close()


def _preload(module: Any, jobs: int) -> dict[str, Any]:
    """Enqueue `jobs` no-op jobs."""
    for begin in range(0, jobs, BATCH):
        module.many(min(BATCH, jobs - begin))
    return {}


def _enqueue(module: Any, single: int, bulk: int) -> dict[str, Any]:
    """Return jobs a second: one by one, and in the peer's own way of enqueueing many."""
    for _ in range(WARM):
        module.one()
    begun = time.monotonic()
    for _ in range(single):
        module.one()
    between = time.monotonic()
    for _ in range(0, bulk, BATCH):
        module.many(BATCH)
    ended = time.monotonic()
    return {"single": single / (between - begun), "bulk": bulk / (ended - between)}


def _stamp(module: Any, path: str, samples: int, gaps: tuple[float, float]) -> dict[str, Any]:
    """Enqueue jobs at random distances; when each call began, and how long it took. The first one is to warm up."""
    called: list[float] = []
    took: list[float] = []
    for number in range(samples + 1):
        time.sleep(random.uniform(*gaps))
        called.append(time.monotonic())
        module.stamped(path, number)
        took.append(time.monotonic() - called[-1])
    return {"called": called, "took": took}


def _hang(module: Any, path: str, turns: int, limit: float) -> dict[str, Any]:
    """Enqueue jobs that hang; seconds from the first line of each to the end of its process."""
    return {"dead": hanging_jobs.deaths(lambda: module.hanging(path), path, turns, limit)}


_VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "preload": _preload,
    "enqueue": _enqueue,
    "stamp": _stamp,
    "hang": _hang,
}


if __name__ == "__main__":
    answer(run)
