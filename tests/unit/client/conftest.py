"""What the tests of the producers' side share."""

from __future__ import annotations

import pytest

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
def in_child(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pool's child sees the world: `backend` is its channel to the master."""
    monkeypatch.setattr(producer, "process", producer.Process())
    producer.enter_child(backend)
