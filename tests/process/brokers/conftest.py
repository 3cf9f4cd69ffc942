"""Gives each test a rig on a real server that others share: by default the first of those that it could run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.poolrig import Rig, describe_pools
from support.poolrig_brokers import USUAL, Broker, kind_of


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only(*brokers): on these, and not on the usual ones")
    config.addinivalue_line("markers", "also(*brokers): on the usual ones, and on these that can do less")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        only, also = (metafunc.definition.get_closest_marker(name) for name in ("only", "also"))
        kinds = [only.args] if only else [USUAL, also.args if also else ()]
        some = None if metafunc.config.option.all else 1
        metafunc.parametrize("broker", [name for names in kinds for name in names[:some]], indirect=True)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with kind_of(request.param).on_shared_server() as broker:
        yield broker


@pytest.fixture
def rig(broker: Broker, tmp_path: Path) -> Iterator[Rig]:
    """Enqueues and looks straight at the server."""
    with Rig(tmp_path / "rig", broker.url) as rig:
        yield rig


pytest_runtest_makereport = describe_pools
