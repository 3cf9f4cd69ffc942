"""Connections: that cannot be, of many at once, after a close, across a fork, and that break on the way."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from subprocess import PIPE

import postgres_rig
import pytest
import redis_rig
from beanstalk_clients import Clients
from support.jobs import QUEUE, a_job
from support.servers import fresh_name, shared_postgres, shared_redis

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import NewPost
from jobpool.broker.opening import open_backend
from jobpool.client.jobs import Jobs
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.sqlite import SqliteBackend
from jobpool_torture.network import Proxy

NOTHING_THERE = "127.0.0.1:1"

URLS = [
    f"redis://{NOTHING_THERE}/0",
    f"redis+cluster://{NOTHING_THERE}",
    f"redis+sentinel://{NOTHING_THERE}/main",
    f"postgresql://me:hidden@{NOTHING_THERE}/x",
    f"beanstalk://{NOTHING_THERE}",
    f"Endpoint=sb://{NOTHING_THERE};SharedAccessKeyName=n;SharedAccessKey=aGlkZGVu;UseDevelopmentEmulator=true",
]


@pytest.mark.parametrize("url", URLS, ids=lambda url: url.partition(":")[0])
def test_a_refused_connection_is_one_traceback(url: str) -> None:
    with Jobs(url) as jobs, pytest.raises(BackendUnavailable) as refused:
        jobs.define("report").dispatch()
    told = "".join(traceback.format_exception(refused.value))
    assert told.count("Traceback (most recent call last)") == 1
    assert told.splitlines()[-1].startswith("jobpool.errors.BackendUnavailable: ")
    assert NOTHING_THERE in str(refused.value)
    assert "hidden" not in told


RIGS = {"postgres": postgres_rig.Rig, "redis": redis_rig.Rig, "beanstalk": Clients}


@pytest.fixture(params=["sqlite", *RIGS])
def backend(request: pytest.FixtureRequest, path: Path) -> Iterator[QueueBackend]:
    with ExitStack() as stack:
        rig = stack.enter_context(RIGS[request.param]()) if request.param in RIGS else None
        yield stack.enter_context(closing(rig.open() if rig else SqliteBackend(str(path))))


def test_a_closed_backend_says_so(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    backend.close()
    backend.close()
    for call in (lambda: backend.enqueue(a_job()), lambda: backend.fetch_many(QUEUE, limit=1), backend.ping):
        with pytest.raises(BackendUnavailable, match=r"was closed( here)?: open the backend again"):
            call()


def test_a_backend_is_not_used_across_a_fork(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    child = os.fork()
    if not child:
        status = 1
        try:
            backend.stats(QUEUE)
        except ConfigurationError as error:
            told = f"process {os.getppid()}, before a fork", "open the backend after the fork"
            status = 0 if all(words in str(error) for words in told) else 2
        finally:
            backend.close()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.stats(QUEUE).waiting == 1, "what the child closed was its own"


# --- the first of a store, all at the same moment ---------------------------------------------------------------

USE_AT_ONCE = """
import sys
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
print("ready", flush=True)
sys.stdin.readline()
backend = open_backend(sys.argv[1])
backend.enqueue(JobDefinition("report", queue="reports"))
backend.close()
"""


@pytest.mark.parametrize(("broker", "count"), [("sqlite", 8), ("postgres", 4)])
def test_processes_that_begin_at_once_make_one_store(path: Path, broker: str, count: int) -> None:
    with postgres_rig.Rig(new=True) if broker == "postgres" else nullcontext() as rig:
        url = rig.url({"timeout": 30, "connect_timeout": 30}) if rig else f"sqlite:///{path}?timeout=30"
        command = [sys.executable, "-c", USE_AT_ONCE, url]
        processes = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) for _ in range(count)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.communicate(timeout=60)[1] for process in processes] == [""] * count
        with closing(open_backend(url)) as backend:
            assert backend.stats(QUEUE).waiting == count


# --- answers that are lost on the way: another client may have ended these jobs before we know of it ----------------

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
    with postgres_rig.Rig() as rig, Proxy(server.host, server.port) as proxy:
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
