"""Gives each test a rig whose processes are gone when it ends; a failing test says where its folder is.

Tests run on SQLite; those marked `brokers` on a server too, and with `--all` on each of the usual ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faultrig import EMBEDDED, fault_broker
from support.poolrig import Rig, describe_pools
from support.poolrig_brokers import USUAL


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "brokers: run on servers too, because what it tests is a broker's affair too")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("brokers"):
        servers = USUAL if metafunc.config.option.all else USUAL[:1]
        metafunc.parametrize("rig", [EMBEDDED, *servers], indirect=True)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    name = getattr(request, "param", EMBEDDED)
    with fault_broker(name, tmp_path) as broker, Rig(tmp_path, broker.url if broker else None) as rig:
        yield rig


pytest_runtest_makereport = describe_pools
