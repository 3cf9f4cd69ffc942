"""One suite for every backend. Tests say by marker which capability they need, or need to be missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.harness import HARNESSES, Harness, misfit
from support.harnesses.base import dismiss_crowd

from jobpool.broker.backend import QueueBackend


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*fields): run only where these fields of Capabilities are true")
    config.addinivalue_line("markers", "lacks(*fields): run only where these fields of Capabilities are false")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Skip what does not fit a backend before any fixture is made: of eight backends each test has a few such."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("harness") if callspec else None
    if name in HARNESSES and (reason := misfit(item, HARNESSES[name])):
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=list(HARNESSES))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    harness = HARNESSES[request.param](tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def backend(harness: Harness) -> QueueBackend:
    return harness.open()


@pytest.fixture(scope="module", autouse=True)
def crowds() -> Iterator[None]:
    """The crowds of a module are made of the same processes, and nothing is left of them."""
    yield
    dismiss_crowd()
