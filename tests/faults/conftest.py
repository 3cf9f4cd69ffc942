"""Gives each test of a fault a rig on every broker that it names, and a place for the figures that it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faultmoves import Figure
from support.faultrig import EMBEDDED, fault_broker, fault_rig
from support.poolrig import Rig, describe_pools
from support.poolrig_brokers import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(*numbers): of tests/faults/rows.md that it shows")
    config.addinivalue_line("markers", "on(*brokers): on the first of these, on each with --all; on SQLite without it")
    config.addinivalue_line("markers", "own_server: on a server of the test's own, which keeps what it has answered")
    config.addinivalue_line("markers", "ttr(seconds): how long leases last on beanstalkd; 10 without it")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        on = metafunc.definition.get_closest_marker("on")
        brokers = on.args if on else (EMBEDDED,)
        metafunc.parametrize("broker", brokers if metafunc.config.option.all else brokers[:1], indirect=True)


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker | None]:
    """None on SQLite."""
    alone = request.node.get_closest_marker("own_server") is not None
    ttr = request.node.get_closest_marker("ttr")
    with fault_broker(request.param, tmp_path, alone=alone, ttr=ttr and ttr.args[0]) as broker:
        yield broker


@pytest.fixture
def rig(broker: Broker | None, tmp_path: Path) -> Iterator[Rig]:
    """Enqueues and looks straight at the broker; its pools run under the witness."""
    with fault_rig(tmp_path, broker) as rig:
        yield rig


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """`figure("ready again", 0.031, "s")`: kept with the test's result; scripts/figures.py puts it into the page.

    Several of one name in one test are one figure: their median and their highest.
    """

    def note(name: str, value: float, unit: str) -> None:
        record_property(f"figure: {name}", f"{value:.6g} {unit}")

    return note


pytest_runtest_makereport = describe_pools
