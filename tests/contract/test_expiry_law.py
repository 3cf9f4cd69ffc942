"""A job with `expires_in` expires by the broker's clock, whatever this machine's says."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job

from jobpool.master.inspection import Inspector
from jobpool.outcome import Expired
from jobpool.signing import EnvelopeSigner

pytestmark = pytest.mark.needs("leases")

SLACK = 10.0
"""Seconds that a busy machine may take between two calls."""


def test_its_time_counts_on_the_brokers_clock(harness: Harness) -> None:
    harness.advance(3600.0)
    backend = harness.open()
    told = backend.broker_time()
    now = backend.clock.wall() if told is None else told

    backend.enqueue(a_job(expires_in=30.0))
    [lease] = backend.fetch_many(QUEUE, limit=1)

    assert lease.envelope.expires == pytest.approx(now + 30.0, abs=SLACK)
    inspect = Inspector(EnvelopeSigner(), {}).inspect
    assert inspect(lease, backend.time.now).outcome is None
    assert inspect(lease, lambda: backend.time.now() + 30.0 + SLACK).outcome == Expired()
