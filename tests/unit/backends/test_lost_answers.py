"""Enqueues whose answers are lost on the way: another client may have ended these jobs before we know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from postgres_rig import Rig
from support.jobs import QUEUE, a_job
from support.servers import fresh_name, shared_postgres, shared_redis

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import NewPost
from jobpool.broker.opening import open_backend
from jobpool.errors import BackendUnavailable
from jobpool_torture.network import Proxy

SOME = [1, 3, 60]
"""Messages in one call: each of these goes its own way."""


Place = Callable[[], AbstractContextManager[tuple[QueueBackend, Proxy]]]


@contextmanager
def _redis() -> Iterator[tuple[QueueBackend, Proxy]]:
    server = shared_redis()
    with Proxy(server.host, server.port) as proxy:
        backend = open_backend(f"redis://{proxy.host}:{proxy.port}?prefix={fresh_name()}")
        yield backend, proxy
        backend.close()


@contextmanager
def _postgres() -> Iterator[tuple[QueueBackend, Proxy]]:
    server = shared_postgres()
    with Rig() as rig, Proxy(server.host, server.port) as proxy:
        yield rig.open(base=f"postgresql://postgres@{proxy.host}:{proxy.port}/postgres"), proxy


@pytest.mark.parametrize("count", SOME)
@pytest.mark.parametrize("place", [_redis, _postgres], ids=["redis", "postgres"])
def test_an_unanswered_enqueue_is_repeated_only_with_given_ids(place: Place, count: int) -> None:
    minted = [a_job() for _ in range(count)]
    given = [a_job(identifier=f"{count}-{number}") for number in range(count)]
    posts = [NewPost(fresh_name(), False, b"hello") for _ in range(count)]
    with place() as (backend, proxy):

        def lose_answer() -> None:
            assert backend.fetch("other") is None  # on a kept connection
            proxy.drop_replies(1)

        backend.enqueue_many(minted)  # from now on the server knows the scripts
        backend.claims.post(QUEUE, posts)
        lose_answer()
        with pytest.raises(BackendUnavailable):
            backend.enqueue_many(minted)
        lose_answer()
        with pytest.raises(BackendUnavailable):
            backend.claims.post(QUEUE, posts)
        lose_answer()
        assert backend.enqueue_many(given) == [job.identifier for job in given]


@pytest.mark.parametrize("place", [_redis, _postgres], ids=["redis", "postgres"])
def test_an_enqueue_replaces_a_connection_that_broke_while_it_was_idle(place: Place) -> None:
    with place() as (backend, proxy):
        for count in SOME:
            for _ in range(2):
                assert len(backend.enqueue_many([a_job() for _ in range(count)])) == count
                proxy.cut()
