"""Garbage that refers to itself goes within ten seconds, however rarely the collector itself runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from jobpool.master.run import GC_EVERY_S, PeriodicGc


class Connection:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def dropped() -> weakref.ref[Connection]:
    return weakref.ref(Connection())


def test_it_goes_when_its_time_has_come_and_not_before() -> None:
    periodic = PeriodicGc(now=100.0)
    first = dropped()
    periodic.look(100.0 + GC_EVERY_S - 0.1)
    assert first() is not None
    periodic.look(100.0 + GC_EVERY_S)
    assert first() is None


def test_and_again_so_much_later() -> None:
    periodic = PeriodicGc(now=0.0)
    periodic.look(GC_EVERY_S)
    second = dropped()
    periodic.look(2 * GC_EVERY_S - 0.1)
    assert second() is not None
    periodic.look(2 * GC_EVERY_S)
    assert second() is None
