"""What is found out before a child sees a message. Envelopes have pages of their own: test_signing_attacks.py."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.jobs import new_lease

from jobpool.ipc.frames import run_packet
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Rejected
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import MAX_COUNTER, LeaseInspector
from jobpool_backends.memory import MemoryBackend


@pytest.fixture
def lease() -> JobLease:
    backend = MemoryBackend()
    return new_lease(backend)


def counting(lease: JobLease, counter: str, value: int) -> JobLease:
    changed: dict[str, Any] = {counter: value}
    return replace(lease, **changed)


@pytest.mark.parametrize("counter", ["attempts", "crashes", "deliveries"])
@pytest.mark.parametrize("value", [-1, MAX_COUNTER + 1, 2**64])
def test_counters_that_cannot_be_true_are_rejected(lease: JobLease, counter: str, value: int) -> None:
    """They are not signed: who reaches the broker can write any number there, and must not end the pool by it."""
    outcome = LeaseInspector(EnvelopeSigner(), {}).inspect(counting(lease, counter, value), float)
    assert isinstance(outcome, Rejected)
    assert f"{counter} {value}" in outcome.why


@pytest.mark.parametrize("counter", ["attempts", "crashes", "deliveries"])
def test_the_largest_that_is_taken_fits_into_a_frame(lease: JobLease, counter: str) -> None:
    most = counting(lease, counter, MAX_COUNTER)
    assert LeaseInspector(EnvelopeSigner(), {}).inspect(most, float) is None
    assert run_packet(1, most.deliveries, most.attempts, most.crashes, 1.0, most.body)
