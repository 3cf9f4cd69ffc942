"""Rates of several windows under one name: the same starts, counted over each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from support.jobs import QUEUE, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.clock import ManualClock
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend

Open = Callable[..., SqliteBackend]

A_SECOND = Rate("api", 2, 1.0)
AN_HOUR = Rate("api", 4, 3600.0)


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, clock: ManualClock, open_sqlite: Open) -> Iterator[QueueBackend]:
    with closing(MemoryBackend(clock=clock) if request.param == "memory" else open_sqlite(clock=clock)) as backend:
        yield backend


@pytest.mark.parametrize("rates", [(A_SECOND, AN_HOUR), (AN_HOUR, A_SECOND)], ids=["shorter first", "longer first"])
def test_a_start_counts_in_all_windows_for_as_long_as_the_longest(
    backend: QueueBackend, clock: ManualClock, rates: tuple[Rate, ...]
) -> None:
    backend.enqueue_many(numbered(6))
    asked = [(lease, Guards(rates=rates)) for lease in backend.fetch_many(QUEUE, limit=6, ttl=9999.0)]
    granted, limited = Begun(Begin.GRANTED), Begun(Begin.LIMITED, "api", 1.0)
    assert backend.keys.begin_many(asked[:4]) == [granted, granted, limited, limited]
    clock.advance(1800.0)
    assert backend.keys.begin_many(asked[2:4]) == [granted, granted]
    clock.advance(1799.0)
    assert backend.keys.begin_many(asked[4:]) == [Begun(Begin.LIMITED, "api", 1.0)] * 2
    clock.advance(1.0)
    assert backend.keys.begin_many(asked[4:]) == [granted, granted]
