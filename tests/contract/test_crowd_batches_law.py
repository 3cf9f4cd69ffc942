"""Members of many batches are settled by processes that are killed: each end is counted once, and calls back once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import pytest
from support.apart import context
from support.crowd_batches import QUEUES, settle_for_ever
from support.harness import Harness
from support.jobs import a_job
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.message.batches import BatchCall
from jobpool.message.definition import JobDefinition

pytestmark = [
    pytest.mark.needs("leases", "key_store", "atomic_across_queues"),
    pytest.mark.xdist_group("crowds"),
]

TOGETHER, KILLS = 4, 8
BATCHES = [f"batch-{number}" for number in range(2 * KILLS)]
KINDS = {"plain": 24, "move": 8, "bring": 8, "fail": 2}
MEMBERS = KINDS["plain"] + KINDS["move"] + 2 * KINDS["bring"]
"""Of a batch in which none fails."""

DONE = "done"


@pytest.mark.parametrize("harness", ["sqlite", "postgres", "redis"], indirect=True)  # that processes share
def test_batches_end_once_though_those_who_settle_their_members_are_killed(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    called: Counter[str] = Counter()
    with crowd(opener) as processes:
        for kill in range(KILLS):
            before = left(backend)
            open_with_members(backend, BATCHES[2 * kill], fails=False)
            open_with_members(backend, BATCHES[2 * kill + 1], fails=True)
            wait_until(lambda before=before: left(backend) < before + MEMBERS, 60.0, "half of them have ended")
            processes[kill % TOGETHER].kill()
            processes[kill % TOGETHER] = started(opener, TOGETHER + kill)
        wait_until(lambda: hear(backend, called) and all_have_ended(backend), 90.0, "all have ended")
    hear(backend, called)
    success = [batch for number, batch in enumerate(BATCHES) if number % 2 == 0]
    assert called == Counter([f"done {batch}" for batch in BATCHES] + [f"success {batch}" for batch in success])
    for number, batch in enumerate(BATCHES):
        found = backend.batches.get(batch)
        assert found is not None
        failed = KINDS["fail"] * (number % 2)
        assert (found.total, found.succeeded, found.failed) == (MEMBERS + failed, MEMBERS, failed)
        assert backend.batches.members(batch, 10) == []
    assert sum(backend.stats(queue).pending for queue in QUEUES) == 0


def open_with_members(backend: QueueBackend, batch: str, fails: bool) -> None:
    """Its callbacks have minted ids, which no broker remembers: one that is added twice is seen."""
    both = [JobDefinition("told", f"{name} {batch}", queue=DONE) for name in ("done", "success")]
    backend.call_batch(BatchCall("open", batch, None, ("on_done", "on_success")), both)
    kinds = [kind for kind, count in KINDS.items() for _ in range(count) if fails or kind != "fail"]
    backend.enqueue_many([a_job((batch, kind), queue=QUEUES[n % 2], batch=batch) for n, kind in enumerate(kinds)])
    backend.batches.close(batch)


def left(backend: QueueBackend) -> int:
    return sum(found.left for found in map(backend.batches.get, BATCHES) if found)


def all_have_ended(backend: QueueBackend) -> bool:
    return all(found and found.has_ended for found in map(backend.batches.get, BATCHES))


def hear(backend: QueueBackend, called: Counter[str]) -> bool:
    """Take the callbacks that have come."""
    for lease in backend.fetch_many(DONE, limit=100, ttl=60.0):
        called[lease.envelope.payload] += 1
        backend.ack(lease)
    return True


@contextmanager
def crowd(opener: Callable[[], QueueBackend]) -> Iterator[list[BaseProcess]]:
    processes = [started(opener, number) for number in range(TOGETHER)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def started(opener: Callable[[], QueueBackend], number: int) -> BaseProcess:
    process = context().Process(target=settle_for_ever, args=(opener, number), daemon=True)
    process.start()
    return process
