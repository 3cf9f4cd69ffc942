"""What the tests of the producers' side share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.settings import without_settings

from jobpool.clock import ManualClock
from jobpool.message import producer
from jobpool_backends.memory import MemoryBackend


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path)


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
