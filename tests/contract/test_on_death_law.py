"""A job that ended for good is told to the `on_death` hooks at least once, on every broker, however it ended."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job
from support.looks import dead_letter

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ENQUEUE_MEMORY, MessageFilter, Reaped, ReapPolicy, Verb
from jobpool.client.worker import QueueWorker
from jobpool.handlers.registry import HandlerRegistry
from jobpool.master.dead_letter_jobs import DeadLetterJobs
from jobpool.message.context import JobContext
from jobpool.message.dead_letters import ON_DEATH, DeadJob
from jobpool.message.outcome import Status

pytestmark = pytest.mark.needs("leases")

AT_ONCE = ReapPolicy(max_crashes=1, back_off=0.0)


def failing(told: list[DeadJob]) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.on_death(told.append)

    @registry.handler("report", max_retries=0)
    def report(ctx: JobContext) -> None:
        raise ValueError(f"no paper for {ctx.payload}")

    return registry


def crashed_to_death(backend: QueueBackend, identifier: str | None = None) -> str:
    """Nobody saw this death: the pool that reaped it has ended."""
    ident = backend.enqueue(a_job({"customer": 7}, handler="report", identifier=identifier))
    for _ in range(10):
        lease = backend.fetch(QUEUE, ttl=5.0)
        if lease is not None:
            backend.forfeit(lease, "killed by SIGKILL")
        if any(one.dead for one in backend.reap(QUEUE, AT_ONCE)):
            return ident
    raise AssertionError("it does not die")


def next_pool(backend: QueueBackend) -> DeadLetterJobs:
    pool = DeadLetterJobs(backend, None)
    pool.closed_to_hooks = frozenset()
    return pool


def test_a_failure_is_told_ahead_of_the_other_jobs(backend: QueueBackend) -> None:
    told: list[DeadJob] = []
    ident = backend.enqueue(a_job({"customer": 7}, handler="report", meta={"traceparent": "00-1-2-3", "by": "me"}))
    worker = QueueWorker(backend, failing(told))
    assert worker.process_once(QUEUE).status is Status.DEAD_LETTERED
    assert worker.process_once(QUEUE).status is Status.ACKED
    [dead] = told
    assert (dead.id, dead.handler, dead.queue, dead.reason) == (ident, "report", QUEUE, "failed")
    assert (dead.attempts, dead.crashes, dead.payload, dead.meta["by"]) == (1, 0, {"customer": 7}, "me")
    assert "ValueError: no paper" in (dead.error or "")
    assert dead_letter(backend, ident).reason == "failed", "the letter stays where it is"
    assert worker.process_once(QUEUE).status is Status.EMPTY


def test_what_leaves_no_room_for_the_record_is_left_out(backend: QueueBackend) -> None:
    told: list[DeadJob] = []
    deep: dict[str, object] = {}
    for _ in range(61):
        deep = {"in": deep}
    ident = backend.enqueue(a_job(handler="report", meta={"traceparent": deep}))
    worker = QueueWorker(backend, failing(told))
    assert worker.process_once(QUEUE).status is Status.DEAD_LETTERED
    assert worker.process_once(QUEUE).status is Status.ACKED
    [dead] = told
    assert (dead.id, dead.reason, dead.meta, dead.payload_left_out) == (ident, "failed", {}, True)
    assert "ValueError: no paper" in (dead.error or "")


def test_a_death_that_its_reaper_told_nobody_of_is_told_by_the_next_pool(backend: QueueBackend) -> None:
    ident = crashed_to_death(backend)
    pool = next_pool(backend)
    for _ in range(3):
        pool.forward([QUEUE])
    told: list[DeadJob] = []
    worker = QueueWorker(backend, failing(told))
    assert worker.process_once(QUEUE).status is Status.ACKED
    assert worker.process_once(QUEUE).status is Status.EMPTY, "once by this pool"
    [dead] = told
    assert (dead.id, dead.reason, dead.attempts, dead.crashes, dead.payload) == (
        ident,
        "crash-limit",
        0,
        2,
        {"customer": 7},
    )
    assert dead.cause == "killed by SIGKILL"


@pytest.mark.needs("key_store")
def test_another_pool_does_not_tell_of_it_again(harness: Harness, backend: QueueBackend) -> None:
    crashed_to_death(backend)
    next_pool(backend).forward([QUEUE])
    assert QueueWorker(backend, failing([])).process_once(QUEUE).status is Status.ACKED
    next_pool(harness.open()).forward([QUEUE])
    assert backend.fetch(QUEUE) is None


@pytest.mark.needs("known_ids")
@pytest.mark.parametrize("way", ["fails", "crashes"])
def test_the_death_of_a_new_job_with_a_former_id_is_told_too(harness: Harness, backend: QueueBackend, way: str) -> None:
    told: list[DeadJob] = []
    worker, pool = QueueWorker(backend, failing(told)), next_pool(backend)
    for _ in range(2):
        if way == "fails":
            backend.enqueue(a_job({"customer": 7}, handler="report", identifier="order-17"))
            assert worker.process_once(QUEUE).status is Status.DEAD_LETTERED
        else:
            crashed_to_death(backend, "order-17")
            pool.died([Reaped("order-17", QUEUE, 2, None, dead=True)])
            pool.forward()
        hook = backend.fetch(QUEUE)
        assert hook is not None, "the hooks are told"
        backend.abandon(hook, "failed")
        assert backend.bulk(MessageFilter(ids=("order-17",)), Verb.DELETE) == 1
        harness.advance(ENQUEUE_MEMORY + 10.0)


def test_the_death_of_a_hook_is_told_to_nobody(backend: QueueBackend) -> None:
    def breaks(dead: DeadJob) -> None:
        raise KeyError(dead.id)

    registry = failing([])
    registry.on_death(breaks)
    backend.enqueue(a_job({"id": "x"}, handler=ON_DEATH, max_retries=0))
    worker = QueueWorker(backend, registry)
    assert worker.process_once(QUEUE).status is Status.DEAD_LETTERED
    assert worker.process_once(QUEUE).status is Status.EMPTY
