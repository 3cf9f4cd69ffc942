"""Where a lease lasts as long as the queue or the message says, the lease tells how long that is."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease

from jobpool.broker.backend import QueueBackend
from jobpool.message.settlement import Settled

pytestmark = [pytest.mark.needs("leases"), pytest.mark.lacks("chosen_ttl")]

each_ttl = pytest.mark.parametrize("ttl", [0.5, 30.0, 10_000.0])


@each_ttl
def test_whatever_is_asked_the_lease_tells_its_end_and_ends_then(
    harness: Harness, backend: QueueBackend, ttl: float
) -> None:
    backend.enqueue(a_job())
    before = backend.clock.boot()
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=ttl)
    lasts = harness.lasts(ttl)
    assert before + lasts == pytest.approx(lease.expires_at, abs=0.5)
    assert lease.expires_at <= backend.clock.boot() + lasts
    harness.advance(lasts - harness.tick)
    assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(harness.tick)
    assert not backend.ack(lease)
    assert len(backend.fetch_many(QUEUE, limit=1)) == 1


@each_ttl
def test_a_renewal_gives_the_whole_time_again(harness: Harness, backend: QueueBackend, ttl: float) -> None:
    lease = new_lease(backend, ttl=ttl)
    lasts = harness.lasts(ttl)
    for _ in range(3):
        harness.advance(0.7 * lasts)
        lease = backend.renew(lease, ttl)
        assert lease.expires_at == pytest.approx(backend.clock.boot() + lasts, abs=0.5)
        assert backend.fetch_many(QUEUE, limit=1) == []
    harness.advance(lasts - harness.tick)
    assert backend.ack(lease) is Settled.OK
