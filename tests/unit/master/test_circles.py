"""Garbage that refers to itself goes within ten seconds, however rarely the collector itself runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from jobpool.master.circles import EVERY, Circles


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
    circles = Circles(now=100.0)
    first = dropped()
    circles.look(100.0 + EVERY - 0.1)
    assert first() is not None
    circles.look(100.0 + EVERY)
    assert first() is None


def test_and_again_so_much_later() -> None:
    circles = Circles(now=0.0)
    circles.look(EVERY)
    second = dropped()
    circles.look(2 * EVERY - 0.1)
    assert second() is not None
    circles.look(2 * EVERY)
    assert second() is None
