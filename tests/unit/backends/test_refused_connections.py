"""Connections that cannot be: to a broker that is not there, after a close, and across a fork; each a sentence."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import postgres_rig
import pytest
import redis_rig
from beanstalk_clients import Clients
from support.jobs import QUEUE, a_job

from jobpool.broker.backend import QueueBackend
from jobpool.client.jobs import Jobs
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.sqlite import SqliteBackend

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
