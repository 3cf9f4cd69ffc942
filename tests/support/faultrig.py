"""What a test of a fault stands on: a rig whose pools run under the witness, on a broker of a name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.poolrig import Rig
from support.poolrig_brokers import BeanstalkBroker, Broker, kind_of

EMBEDDED = "sqlite"


@contextmanager
def fault_broker(name: str, folder: Path, *, alone: bool = False, ttr: float | None = None) -> Iterator[Broker | None]:
    """A place on that broker, None for SQLite; `alone`: on a server of its own, which may be killed.

    `ttr`: seconds that leases last on beanstalkd.
    """
    if name == EMBEDDED:
        yield None
        return
    kind = kind_of(name)
    broker = kind.on_its_own(folder / "server") if alone else kind.on_shared_server()
    if ttr and isinstance(broker, BeanstalkBroker):
        broker.lasts = ttr
    with broker:
        yield broker


def fault_rig(folder: Path, broker: Broker | None) -> Rig:
    """A rig in that folder, straight at the broker; every process of it is gone at the end."""
    return Rig(folder / "rig", broker.url if broker else None, witness=True)


# --- fixtures of a file whose tests share their pools: `broker, rig = broker_of_file, rig_of_file` --------------------


@pytest.fixture(scope="module")
def broker_of_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | None]:
    """In the place of `broker`; None on SQLite."""
    with fault_broker(request.param, tmp_path_factory.mktemp("server")) as broker:
        yield broker


@pytest.fixture(scope="module")
def rig_of_file(broker: Broker | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """In the place of `rig`."""
    with fault_rig(tmp_path_factory.mktemp("pools"), broker) as rig:
        yield rig
