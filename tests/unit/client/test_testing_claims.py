"""A virtual pool beside claims and posted messages, on its one queue."""

from __future__ import annotations

import pytest

from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.outcome import Status
from jobpool.testing import VirtualPool


@pytest.fixture
def registry() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handler
    def report(_: JobContext) -> None: ...

    return registry


def test_what_was_posted_is_not_to_run_and_nothing_waits_for_it(registry: HandlerRegistry) -> None:
    with VirtualPool(registry) as pool:
        start = pool.clock.wall()
        queue = pool.jobs.queue("default")
        queue.post(["free"])
        queue.post(["delayed"], delay=90)
        pool.jobs.define("report").dispatch()
        assert [run.status for run in pool.run_all()] == [Status.ACKED]
        assert pool.waiting() == []
        assert pool.clock.wall() == start
        assert queue.stats().total == 2


def test_a_job_that_somebody_claimed_runs_when_the_claim_has_ended(registry: HandlerRegistry) -> None:
    with VirtualPool(registry) as pool:
        start = pool.clock.wall()
        ident = pool.jobs.define("report").dispatch()
        assert pool.jobs.queue("default").claim(ttl=60) is not None
        assert pool.run_ready() == []
        assert [run.id for run in pool.run_all()] == [ident]
        assert pool.clock.wall() == start + 60
