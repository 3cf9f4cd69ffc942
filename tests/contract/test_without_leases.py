"""A backend that keeps nothing runs a job at its enqueue, and accepts every verb."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.harness import Harness
from support.harnesses.embedded import SyncHarness
from support.jobs import QUEUE, a_job, at

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, QueueStats, Verb
from jobpool.errors import InvalidJob, Unsupported
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Nack, Release, Settled

pytestmark = pytest.mark.lacks("leases")

LEASE = JobLease("id", QUEUE, b"{}", None, "0" * 32, 0.0, "elsewhere")


def ran(harness: Harness) -> list[object]:
    assert isinstance(harness, SyncHarness)
    return [definition.payload for definition in harness.ran]


def test_a_job_runs_before_enqueue_returns(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job("now"))
    assert re.fullmatch("sync-[0-9a-f]{12}", ident)
    assert ran(harness) == ["now"]


def test_a_batch_runs_in_its_order(harness: Harness, backend: QueueBackend) -> None:
    ids = backend.enqueue_many([a_job(1), a_job(2), a_job(3)])
    assert len(set(ids)) == 3
    assert ran(harness) == [1, 2, 3]


def test_a_future_time_is_refused_and_nothing_runs(harness: Harness, backend: QueueBackend) -> None:
    with pytest.raises(Unsupported, match="leave the time out"):
        backend.enqueue_many([a_job(1), a_job(2, scheduled_at=at(harness.now() + harness.tick))])
    assert ran(harness) == []


@pytest.mark.parametrize("seconds", [0.0, -60.0])
def test_a_time_that_has_come_is_now(harness: Harness, backend: QueueBackend, seconds: float) -> None:
    backend.enqueue(a_job("due", scheduled_at=at(harness.now() + seconds)))
    assert ran(harness) == ["due"]


def test_a_body_that_is_too_large_is_refused_and_nothing_runs(harness: Harness, backend: QueueBackend) -> None:
    with pytest.raises(InvalidJob, match="1048576"):
        backend.enqueue_many([a_job(1), a_job("x" * 1_048_577)])
    assert ran(harness) == []


def test_whoever_waits_comes_back_when_the_backend_is_closed(backend: QueueBackend) -> None:
    with ThreadPoolExecutor(1) as executor:
        wait = executor.submit(backend.wait_any, [QUEUE], 30.0)
        backend.close()
        assert wait.result(10.0) is None


def test_the_verbs_do_nothing_and_are_accepted(backend: QueueBackend) -> None:
    batch = [(LEASE, settlement) for settlement in (Ack(), Nack(), Abandon(), Release())]
    assert backend.settle_many(batch) == [Settled.OK] * 4
    assert backend.renew(LEASE, 30.0) is LEASE
    assert backend.reap(QUEUE) == []
    assert backend.reap_expired(QUEUE) == 0


def test_nothing_is_ever_there(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    assert backend.fetch(QUEUE) is None
    assert backend.fetch(QUEUE, wait=0.0) is None
    assert backend.wait_any([QUEUE], 0.01) is None
    assert backend.stats(QUEUE) == QueueStats()
    assert backend.list_messages() == []
    assert backend.queues() == []
    assert backend.inspect("x") is None
    assert backend.count(MessageFilter()) == 0
    assert backend.bulk(MessageFilter(), Verb.DELETE) == 0


@pytest.mark.lacks("key_store")
def test_there_are_no_keys_to_ask_for(harness: Harness, backend: QueueBackend) -> None:
    for ask in (lambda: backend.keys, lambda: backend.claims):
        with pytest.raises(Unsupported, match=r"Capabilities\.key_store"):
            ask()
    with pytest.raises(Unsupported, match="key_store"):
        backend.enqueue_many([a_job(1), a_job(2, unique=True, idempotency_key="k")])
    assert ran(harness) == []
