"""docs/hooks.md: its example runs, in the pool for tests too, whose reaper tells the hooks as well."""

# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.pages import blocks, page

import jobpool
from jobpool.broker.values import ReapPolicy
from jobpool.handlers.registry import HandlerRegistry
from jobpool.testing import Crash, VirtualPool


def hooked() -> HandlerRegistry:
    """The page's hooks, and a handler that fails."""
    registry = HandlerRegistry()
    names: dict[str, Any] = {name: getattr(registry, name) for name in ("before_attempt", "after_attempt", "on_death")}
    [code] = blocks(page("hooks"))
    types = {name: getattr(jobpool, name) for name in ("JobContext", "ExecutionResult", "DeadJob")}
    space = {"__name__": "page", "jobpool": SimpleNamespace(**names, **types)}
    exec(compile(code.replace("import jobpool\n", ""), "hooks.md", "exec", dont_inherit=True), space)

    @registry.handler(max_retries=0)
    def report(ctx: jobpool.JobContext, customer: int) -> None:
        raise ValueError("no paper")

    return registry


def test_the_pages_example_sees_an_attempt_and_its_death() -> None:
    with VirtualPool(hooked()) as pool:
        ident = pool.enqueue(jobpool.JobDefinition("report", {"customer": 7}))
        failed, told = pool.run_all()
        assert failed.output.split("\n") == [
            f"begins report {ident}",
            "",
            f"ended {ident} failed ValueError('no paper')",
            "",
        ]
        assert "dead report {'customer': 7} failed 1\n" in told.output
        assert [letter.id for letter in pool.dead()] == [ident]


def test_a_crash_too_many_is_told_there_too() -> None:
    with VirtualPool(hooked(), reap=ReapPolicy(max_crashes=1, back_off=0.0)) as pool:
        pool.inject(Crash(), at="in_handler", times=2)
        pool.enqueue(jobpool.JobDefinition("report", {"customer": 7}))
        assert "dead report {'customer': 7} crash-limit 0\n" in pool.run_all()[-1].output


def test_a_queue_that_is_closed_to_the_hooks_tells_of_nothing() -> None:
    with VirtualPool(hooked(), queue_handlers={"default": ["report"]}) as pool:
        pool.enqueue(jobpool.JobDefinition("report", {"customer": 7}))
        assert len(pool.run_all()) == 1
