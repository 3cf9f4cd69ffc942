"""Classes, and other things that can be called, as handlers."""

# ruff: noqa: ARG001, ARG002 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import Any

import pytest
from support.built_in import attempt, context, output, refusal

from jobpool.errors import ConfigurationError
from jobpool.handlers.handler import Handler
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.outcome import ResultKind


@dataclass
class Order:
    customer: int


class Report:
    """Build it."""

    made = 0

    def __init__(self, folder: str = "out") -> None:
        type(self).made += 1
        self.runs = 0

    def run(self, ctx: JobContext, customer: int, month: str = "06") -> str:
        self.runs += 1
        return f"{customer}/{month} {self.runs}"


class Called:
    def __call__(self, ctx: JobContext, order: Order) -> str:
        return f"order of {order.customer}"


class Slow:
    async def run(self, ctx: JobContext, *, customer: int) -> int:
        return customer


class AnyFields:
    def run(self, ctx: JobContext, **fields: Any) -> Any:
        return fields


class Everything:
    def run(*args: Any) -> int:
        return len(args)


def test_a_class_is_made_anew_for_each_attempt(registry: HandlerRegistry) -> None:
    Report.made = 0
    made: Handler[..., Any] = registry.handler(Report)
    assert (made.name, made.__doc__) == ("Report", "Build it.")
    assert made.place == f"{__file__}:{Report.run.__code__.co_firstlineno} (Report.run)"
    for _ in range(2):
        assert output("Report", {"customer": 7}, registry) == "7/06 1"
    assert Report.made == 2
    assert made(context(None), customer=7) == "7/06 1", "called as a function, it runs once too"


class NoContext:
    def run(self, count: int = 1) -> str:
        return f"ran {count}"


@pytest.mark.parametrize(
    ("cls", "payload", "answer"),
    [
        (Called, {"customer": 7}, "order of 7"),
        (Slow, {"customer": 7}, "7"),
        (AnyFields, {"a": 1}, '{"a":1}'),
        (Everything, {}, "2"),
        (NoContext, {"count": 2}, "ran 2"),
    ],
)
def test_a_method_takes_its_payload_as_a_function_does(
    registry: HandlerRegistry, cls: type, payload: Any, answer: str
) -> None:
    registry.handler("it")(cls)
    assert output("it", payload, registry) == answer


@pytest.mark.parametrize("payload", [{}, {"customer": "7"}, {"customer": 7, "self": 1}, {"customer": 7, "ctx": 1}])
def test_and_refuses_what_does_not_fit(registry: HandlerRegistry, payload: Any) -> None:
    registry.handler("it")(Report)
    assert refusal("it", payload, registry).startswith("the payload does not fit handler 'it': field ")


class NothingToRun:
    def work(self, ctx: JobContext) -> None: ...


class NeedsMore(Report):
    def __init__(self, folder: str) -> None: ...


class Unwritten(abc.ABC):
    @abc.abstractmethod
    def run(self, ctx: JobContext) -> None: ...


class NotOfInstances:
    @staticmethod
    def run(ctx: JobContext) -> None: ...


class Generates:
    def run(self, ctx: JobContext) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (NothingToRun, "NothingToRun has neither a method run(self, …) nor __call__(self, …)"),
        (NeedsMore, "NeedsMore is made anew for each attempt, without arguments: missing a required argument: 'fold"),
        (Unwritten, "Unwritten is abstract: run is not written"),
        (NotOfInstances, "NotOfInstances has neither a method run"),
        (Generates, "is a generator and would never run"),
        (Order, "Order has neither a method run"),
    ],
)
def test_a_class_that_does_not_fit_is_refused_when_it_is_registered(
    registry: HandlerRegistry, cls: type, text: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        registry.handler("it")(cls)
    assert "'it'" in str(raised.value)
    assert text in str(raised.value)
    assert registry.names() == []


def typed(more: int, ctx: JobContext, order: Order) -> int:
    return more + order.customer


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        pytest.param(Called(), "order of 7", id="an object that is called"),
        pytest.param(functools.partial(typed, 1), "8", id="a partial"),
        pytest.param(functools.partial(Called()), "order of 7", id="a partial of an object"),
        pytest.param(Called().__call__, "order of 7", id="a method"),
    ],
)
def test_other_things_that_are_called_get_their_types_too(
    registry: HandlerRegistry, function: Any, answer: str
) -> None:
    registry.handler("it")(function)
    assert output("it", {"customer": 7}, registry) == answer
    assert attempt("it", {"customer": "7"}, registry).kind is ResultKind.UNRECOVERABLE
