"""The lease thread's appetite: an idle pool asks the broker for nothing but a hint."""

from __future__ import annotations

from collections.abc import Sequence

from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.lease import JobLease
from jobpool.master.inbox import Inbox
from jobpool.master.inspection import Inspector
from jobpool.master.lessor import Lessor
from jobpool.signing import EnvelopeSigner
from jobpool_backends.memory import MemoryBackend


class CountedBackend(MemoryBackend):
    """Counts its fetches, and the waits that ended without a hint."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = 0
        self.waits = 0

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        self.fetches += 1
        return super()._fetch(queue, limit, ttl, fetch_id)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        found = super()._wait_any(queues, min(timeout, 0.01))
        self.waits += found is None
        return found


def test_without_a_hint_nothing_is_fetched_and_with_one_it_is() -> None:
    backend, inbox = CountedBackend(), Inbox()
    lessor = Lessor(backend, ((QUEUE, 1.0), ("mails", 1.0)), 30.0, Inspector(EnvelopeSigner(), {}), inbox)
    lessor.want(2)
    lessor.start()
    try:
        wait_until(lambda: backend.waits > 20)
        assert backend.fetches == 2, "each queue once, before the first wait"
        backend.enqueue(a_job())
        wait_until(lambda: bool(inbox.take()))
        assert backend.fetches in (3, 4)
    finally:
        lessor.stop()
        lessor.join(10.0)
        inbox.close()
    assert not lessor.is_alive()
