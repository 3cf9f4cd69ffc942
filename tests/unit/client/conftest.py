"""What the tests of the producers' side share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobpool.client.jobs import Jobs
from jobpool.clock import ManualClock
from jobpool.message import producer
from jobpool_backends.memory import MemoryBackend


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(clock: ManualClock) -> MemoryBackend:
    return MemoryBackend(clock=clock)


@pytest.fixture
def in_child() -> Iterator[None]:
    """As a pool's child sees the world."""
    before = producer._default.producer
    producer.enter_child(Jobs("memory://"))
    yield
    producer._default.in_child = False
    producer.set_default(before)
