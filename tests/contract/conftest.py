"""One suite for every backend. Tests say by marker which capability they need, or need to be missing.

An item is collected only where its backend can run it. By default a law that the shared code keeps runs on one backend,
and Redis Cluster runs the laws that touch two keys or queues; `--all` runs every law on every backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.harness import HARNESSES, Harness, misfit
from support.harnesses.base import Opener, dismiss_crowd

from jobpool.broker.backend import QueueBackend

ONE = ("memory", "sqlite")
"""A law that is kept above the backend runs on the first of these that fits; on the first of all where none does."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*promises): run only where these are kept (support.promises)")
    config.addinivalue_line("markers", "lacks(*promises): run only where these are not kept")
    config.addinivalue_line("markers", "above: kept by the code above the backends; by default on one of them")
    config.addinivalue_line("markers", "spans: touches two keys or queues; Redis Cluster runs these by default")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a law the backends that fit, as `harness` (a fresh store) or `harness_type`."""
    for name in {"harness", "harness_type"} & set(metafunc.fixturenames):
        if not any(name in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
            metafunc.parametrize(name, backends_of(metafunc), indirect=True)


def backends_of(metafunc: pytest.Metafunc) -> list[str]:
    law = metafunc.definition
    fitting = [name for name, kind in HARNESSES.items() if not misfit(law, kind)]
    if metafunc.config.option.all:
        return fitting
    if law.get_closest_marker("above"):
        return [name for name in (*ONE, *fitting) if name in fitting][:1]
    return [name for name in fitting if name != "redis-cluster" or law.get_closest_marker("spans")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the rows of a table that do not fit a backend: their markers are known only now."""
    items[:] = [item for item in items if not unfit(item)]


def unfit(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("harness") if callspec else None
    return name is not None and (name not in HARNESSES or bool(misfit(item, HARNESSES[name])))


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    harness = HARNESSES[request.param](tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def harness_type(request: pytest.FixtureRequest) -> type[Harness]:
    return HARNESSES[request.param]


@pytest.fixture
def backend(harness: Harness) -> QueueBackend:
    return harness.open()


@pytest.fixture
def opener(harness: Harness) -> Opener:
    """Opens clients of one more store, on the machine's clock."""
    return harness.opener()


@pytest.fixture
def live(harness: Harness, opener: Opener) -> QueueBackend:
    """A client of that store: for what really waits."""
    return harness.keep(opener())


@pytest.fixture(scope="module", autouse=True)
def crowds() -> Iterator[None]:
    """The crowds of a module are made of the same processes, and nothing is left of them."""
    yield
    dismiss_crowd()
