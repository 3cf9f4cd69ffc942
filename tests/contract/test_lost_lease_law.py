"""What a message keeps, and what it forgets, when its lease is lost."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, new_lease
from support.looks import recover, seen

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy, State

pytestmark = pytest.mark.needs("leases")


@pytest.mark.spans
def test_a_former_schedule_counts_no_longer(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job(scheduled_at=at(harness.now() + 60.0)))
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(61.0)
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    recover(harness, backend, 1.0, ReapPolicy(back_off=0.0))
    message = backend.inspect(ident)
    assert (message and message.state) is (State.WAITING if backend.capabilities.lists_live else None)
    assert (backend.stats(QUEUE).waiting, backend.stats(QUEUE).delayed) == (1, 0)
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert (again.id, again.deliveries) == (lease.id, 2)


def test_a_delay_of_a_retry_counts_no_longer_and_its_count_and_error_stay(
    harness: Harness, backend: QueueBackend
) -> None:
    first = new_lease(backend)
    backend.nack(first, delay=30.0, error="the last error")
    harness.advance(31.0)
    backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    recover(harness, backend, 1.0, ReapPolicy(back_off=0.0))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert lease.attempts == 1
    assert lease.crashes == 1 or not backend.capabilities.exact_counts
    backend.release(lease)
    assert seen(backend, lease.id).last_error == "the last error"
