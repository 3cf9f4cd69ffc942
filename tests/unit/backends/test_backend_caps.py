"""The caps on dead letters, as the URLs and options of the embedded backends and of Redis say them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support.jobs import QUEUE, numbered
from support.servers import shared_redis

from jobpool.broker.opening import open_backend
from jobpool.clock import ManualClock
from jobpool.errors import ConfigurationError
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend

Capped = MemoryBackend | SqliteBackend


EMBEDDED = ["memory://", "sqlite:///{path}"]


@pytest.fixture(params=EMBEDDED)
def url(request: pytest.FixtureRequest, path: Path) -> str:
    return str(request.param).format(path=path)


@pytest.fixture(params=[*EMBEDDED, "redis"])
def any_url(request: pytest.FixtureRequest, path: Path) -> str:
    return shared_redis().url if request.param == "redis" else str(request.param).format(path=path)


@pytest.mark.parametrize(("query", "left"), [("", 5), ("?dead_max=2", 2), ("?dead_max=0", 5), ("?dead_max_age=3", 3)])
def test_the_url_says_how_many_and_for_how_long(url: str, query: str, left: int) -> None:
    clock = ManualClock()
    with closing(open_backend(url + query, clock=clock)) as backend:
        assert isinstance(backend, Capped)
        backend.enqueue_many(numbered(5))
        for lease in backend.fetch_many(QUEUE, limit=5):
            backend.abandon(lease, "hopeless")
            clock.advance(1.0)
        backend.reap("another")  # which is not this queue's business
        assert (backend.stats(QUEUE).dead, backend.evicted(QUEUE)) == (left, 5 - left)


@pytest.mark.parametrize("name", ["dead_max", "dead_max_age"])
@pytest.mark.parametrize("value", ["-1", "many", "nan", "inf", "", "1e13"])
def test_a_cap_out_of_range_is_refused(any_url: str, name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option {name}"):
        open_backend(any_url, **{name: value})


def test_a_count_is_whole_and_an_age_need_not_be(any_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"option dead_max .*whole number.*'2\.5'"):
        open_backend(f"{any_url}?dead_max=2.5")
    open_backend(f"{any_url}?dead_max_age=2.5").close()


def test_a_file_keeps_its_count_of_the_evicted(path: Path) -> None:
    for expected in (2, 5):
        with closing(SqliteBackend.from_url(f"sqlite:///{path}?dead_max=1")) as backend:
            backend.enqueue_many(numbered(3))
            for lease in backend.fetch_many(QUEUE, limit=3):
                backend.abandon(lease, "hopeless")
            assert backend.evicted(QUEUE) == expected
