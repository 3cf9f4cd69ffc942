"""Fetch, settle and reap a few messages again and again, on two stores by turns: what each call took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeVar

from bench.programs import answer
from bench.samples.fill_queue import CALL_TIMEOUT_S, QUEUE
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Ack

T = TypeVar("T")

VERBS = ("fetch", "settle", "reap")
WARM_UP = 5
MOMENT = 0.001

Spent = dict[str, list[float]]


def run(urls: Sequence[str], cycles: int, batch: int) -> dict[str, Any]:
    """Return, for each store, milliseconds of each call by its verb. The number of its messages stays the same."""
    spent: list[Spent] = [{verb: [] for verb in VERBS} for _ in urls]
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_backend(url, timeout=CALL_TIMEOUT_S))) for url in urls]
        for turn in range(WARM_UP + cycles):
            for backend, found in zip(stores, spent, strict=True):
                _cycle(backend, batch, found if turn >= WARM_UP else {verb: [] for verb in VERBS})
    return {"spent": spent}


def _cycle(backend: QueueBackend, batch: int, spent: Spent) -> None:
    """Fetch and ack some; then lease some for a moment only, reap them, and ack them too."""
    backend.enqueue_many([JobDefinition("noop", {}, queue=QUEUE)] * 2 * batch)
    leases = timed(spent["fetch"], lambda: backend.fetch_many(QUEUE, limit=batch))
    done = timed(spent["settle"], lambda: backend.settle_many([(lease, Ack()) for lease in leases]))
    lost = backend.fetch_many(QUEUE, limit=batch, ttl=MOMENT)
    time.sleep(2 * MOMENT)
    reaped = timed(spent["reap"], lambda: backend.reap(QUEUE))
    again = backend.fetch_many(QUEUE, limit=batch)
    backend.settle_many([(lease, Ack()) for lease in again])
    if not all(done) or {lease.id for lease in lost} != {each.id for each in reaped}:
        raise RuntimeError(f"{len(leases)} leases, {sum(map(bool, done))} acks, {len(lost)} lost, {len(reaped)} reaped")


def timed(spent: list[float], call: Callable[[], T]) -> T:
    """Return the result of the call; the milliseconds that it took go to `spent`."""
    begun = time.monotonic()
    found = call()
    spent.append((time.monotonic() - begun) * 1e3)
    return found


if __name__ == "__main__":
    answer(run)
