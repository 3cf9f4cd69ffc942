"""`QueueWorker` under guards: the same rules as a pool's, one message at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.jobs import QUEUE, a_job

from jobpool.broker.values import Capabilities
from jobpool.client.worker import QueueWorker
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.guards import Begun, Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Status
from jobpool.policy.limits import Limits
from jobpool.policy.retry import RetryPolicy
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.memory.keys import MemoryKeys

KEYED: dict[str, Any] = {"idempotency_key": "k"}
NO_LIMITS = Limits()


class Bench:
    """A broker in memory, a worker, and a handler that counts its runs and may fail the first of them."""

    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        self.clock = ManualClock()
        self.backend = MemoryBackend(clock=self.clock)
        self.runs = 0
        self.fails = 0
        registry = HandlerRegistry()
        registry.handler("report", max_retries=3)(self._handle)
        self.worker = QueueWorker(self.backend, registry, limits=limits, retry=RetryPolicy("none"))

    def _handle(self, _ctx: JobContext) -> None:
        self.runs += 1
        if self.runs <= self.fails:
            raise ValueError("not yet")

    def enqueue(self, *jobs: dict[str, Any]) -> list[str]:
        return self.backend.enqueue_many([a_job(**job) for job in jobs])

    def process(self, times: int) -> list[Status]:
        return [self.worker.process_once(QUEUE).status for _ in range(times)]

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.worker.counters[QUEUE])


@pytest.mark.parametrize(("limits", "runs"), [(Limits(idempotency_ttl=60.0), 2), (NO_LIMITS, 1)])
def test_a_done_key_is_kept_as_long_as_the_limits_say(limits: Limits, runs: int) -> None:
    bench = Bench(limits)
    bench.enqueue(KEYED)
    bench.process(1)
    bench.clock.advance(60.0)
    bench.enqueue(KEYED)
    bench.process(1)
    assert bench.runs == runs


@pytest.mark.parametrize(("limits", "waits"), [(Limits(idempotency_ttl=60.0), 0), (NO_LIMITS, 1)])
def test_a_unique_key_of_a_job_that_was_skipped_is_known_no_longer_than_that(limits: Limits, waits: int) -> None:
    bench = Bench(limits)
    bench.enqueue(KEYED, KEYED | {"unique": True})
    assert bench.process(2) == [Status.ACKED, Status.SKIPPED_IDEMPOTENT]
    bench.clock.advance(60.0)
    bench.enqueue(KEYED | {"unique": True})
    assert bench.backend.stats(QUEUE).waiting == 1 - waits


def test_a_failed_attempt_leaves_the_key_free_for_its_retry() -> None:
    bench = Bench()
    bench.fails = 2
    bench.enqueue(KEYED)
    assert bench.process(4) == [Status.REQUEUED, Status.REQUEUED, Status.ACKED, Status.EMPTY]
    assert bench.runs == 3


def test_what_is_held_elsewhere_is_released_for_a_while_and_no_failure() -> None:
    for case, limits, job in [
        ("key", Limits(), KEYED),
        ("lock", Limits(), {"single_instance": True}),
        ("queue", Limits(concurrency={QUEUE: 1}), {}),
        ("concurrency key", Limits(concurrency_per_key={QUEUE: 1}), {"concurrency_key": "acme"}),
    ]:
        bench = Bench(limits)
        bench.enqueue(job, job)
        elsewhere = bench.backend.fetch(QUEUE)
        assert elsewhere is not None, case
        name = {"concurrency_key": "concurrency:acme"}.get(next(iter(job), ""), "queue" if not job else "job:report")
        guards = Guards(job.get("idempotency_key"), holds=(Hold(name),))
        assert bench.backend.keys.begin_many([(elsewhere, guards)])[0], case
        assert bench.process(2) == [Status.RELEASED, Status.EMPTY], case
        assert bench.runs == 0, case
        assert bench.counters == {"jobs_fetched": 1, "jobs_released": 1}, case
        bench.backend.release(elsewhere)
        bench.clock.advance(1.0)
        assert bench.process(2).count(Status.ACKED) >= 1, case


class SilentTwice(MemoryKeys):
    silent = 2

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        answers = super()._begin(asked)
        if self.silent:
            self.silent -= 1
            raise BackendUnavailable("silent")
        return answers


def test_a_silent_key_store_is_asked_again_while_the_lease_lives() -> None:
    bench = Bench(Limits(rates={QUEUE: 1}))
    bench.backend._keys = SilentTwice(bench.backend._turn, bench.backend._store)
    worker = QueueWorker(bench.backend, HandlerRegistry(), limits=Limits(rates={QUEUE: 1}))
    bench.enqueue({})
    assert worker.process_once(QUEUE).status is Status.RELEASED, "no handler here: but it was begun, and not refused"
    assert bench.backend.stats(QUEUE).delayed == 1


class Keyless(MemoryBackend):
    capabilities = Capabilities(key_store=False)


def test_limits_on_a_broker_without_keys_are_refused_when_the_worker_is_made() -> None:
    with pytest.raises(ConfigurationError, match="need a broker that keeps keys, and memory:// keeps none"):
        QueueWorker(Keyless(), limits=Limits(concurrency={QUEUE: 1}))
