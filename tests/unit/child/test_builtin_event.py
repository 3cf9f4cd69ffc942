"""The built-in handler `event`."""

# ruff: noqa: ARG001, ARG005 - a listener takes its context, whether it looks at it or not
from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from support.built_in import attempt, failure, output, refusal

from jobpool.errors import ConfigurationError, InvalidJob, Retry, Snooze, Unrecoverable
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.outcome import ResultKind

PAID: dict[str, Any] = {"allowed_events": ["order.paid", "nobody.listens"]}


@dataclass
class Order:
    number: int
    amount: float = 0.0


def listen(registry: HandlerRegistry, name: str, does: Any, seen: list[str] | None = None) -> None:
    def function(ctx: JobContext) -> Any:
        if seen is not None:
            seen.append(name)
        if isinstance(does, BaseException):
            raise does
        return does

    function.__name__ = name
    # Each is written elsewhere, as far as anybody can tell.
    function.__code__ = function.__code__.replace(co_name=name, co_firstlineno=abs(hash(name)) % 10**6 + 1)
    function.__qualname__ = name
    registry.listener("order.paid")(function)


def test_listeners_run_in_the_order_of_their_registration_with_the_events_data(registry: HandlerRegistry) -> None:
    seen: list[Any] = []

    @registry.listener("order.paid")
    def plain(ctx: JobContext) -> None:
        seen.append((ctx.payload, ctx.handler, ctx.id, ctx.attempt))

    @registry.listener("order.paid")
    def by_name(ctx: JobContext, number: int, amount: float = 0.0) -> str:
        seen.append((number, amount))
        return "thanked"

    @registry.listener("order.paid")
    async def typed(ctx: JobContext, order: Order) -> None:
        seen.append(order)

    @registry.listener("another")
    def another(ctx: JobContext) -> None:
        seen.append("another")

    data = {"number": 7, "amount": 2}
    assert output("event", {"name": "order.paid", "data": data}, registry, **PAID) == '{"by_name":"thanked"}'
    assert seen == [(data, "event", "a1", 1), (7, 2.0), Order(7, 2.0)]


def test_what_a_listener_does_to_the_data_is_not_seen_by_the_next(registry: HandlerRegistry) -> None:
    registry.listener("order.paid")(lambda ctx: ctx.payload["lines"].pop())

    @registry.listener("order.paid")
    def by_name(ctx: JobContext, lines: Any) -> None:
        lines.clear()

    @registry.listener("order.paid")
    def last(ctx: JobContext) -> int:
        return len(ctx.payload["lines"])

    made = output("event", {"name": "order.paid", "data": {"lines": [1, 2]}}, registry, **PAID)
    assert made == '{"<lambda>":2,"last":2}'


def test_an_event_without_data_has_an_empty_object(registry: HandlerRegistry) -> None:
    registry.listener("order.paid")(lambda ctx: repr(ctx.payload))
    assert output("event", {"name": "order.paid"}, registry, **PAID) == '{"<lambda>":"{}"}'


def test_what_may_not_be_fired_is_refused_for_good(registry: HandlerRegistry) -> None:
    for payload, text in [
        ({}, "field 'name' of an event must be the event's name, not None"),
        ("order.paid", "the payload of an event must be an object"),
        ([], "the payload of an event must be an object"),
        ({"name": 1}, "field 'name' of an event must be the event's name, not 1"),
        ({"name": ""}, "field 'name' of an event must be the event's name, not ''"),
        ({"name": "order.paid", "date": 1}, "field 'date' of an event is unknown; it has 'name' and 'data'"),
        ({"name": "order.lost"}, "event 'order.lost' is not allowed here; allowed_events names order.paid, nobody"),
        ({"name": "order.paid "}, "event 'order.paid ' is not allowed here"),
        ({"name": "Order.paid"}, "event 'Order.paid' is not allowed here"),
        ({"name": "order.*"}, "event 'order.*' is not allowed here"),
    ]:
        seen: list[str] = []
        listen(registry, "a", None, seen)
        assert text in refusal("event", payload, registry, **PAID), payload
        assert not seen, payload


def test_by_default_nothing_may_be_fired(registry: HandlerRegistry) -> None:
    listen(registry, "a", None)
    said = refusal("event", {"name": "order.paid"}, registry)
    assert said == "event 'order.paid' is not allowed here; allowed_events names none"


def test_an_event_that_nobody_listens_to_is_a_failed_attempt(registry: HandlerRegistry) -> None:
    listen(registry, "a", None)
    said = failure("event", {"name": "nobody.listens"}, registry, **PAID)
    assert said == "nothing listens to event 'nobody.listens' here; there are listeners of order.paid"


def test_all_run_and_then_the_attempt_fails_if_one_did(registry: HandlerRegistry) -> None:
    for case, does, kind, after in [
        ("one", [None, ValueError("x"), None], ResultKind.FAILED, 0.0),
        ("two", [ValueError("x"), KeyError("y"), 1], ResultKind.FAILED, 0.0),
        ("sys.exit", [SystemExit(1), None, None], ResultKind.FAILED, 0.0),
        ("one of them hopeless", [None, Unrecoverable("x"), ValueError()], ResultKind.UNRECOVERABLE, 0.0),
        ("the longest delay that was asked for", [Retry(2), None, Retry(5)], ResultKind.RETRY, 5.0),
        ("a retry counts, a snooze does not", [Snooze(7), None, Retry(5)], ResultKind.RETRY, 5.0),
        ("snooze", [Snooze(7), Snooze(9), None], ResultKind.SNOOZE, 9.0),
        ("a delay, and a failure", [Retry(2), ValueError("x"), None], ResultKind.FAILED, 0.0),
    ]:
        seen: list[str] = []
        for name, what in zip("abc", cast(list[object], does), strict=True):
            listen(registry, name, what, seen)
        made = attempt("event", {"name": "order.paid"}, registry, **PAID)
        assert seen == ["a", "b", "c"], case
        assert (made.kind, made.after) == (kind, after), case


def test_the_error_names_those_that_failed_and_shows_where(registry: HandlerRegistry) -> None:
    for name, what in (("mails", ValueError("no address")), ("counts", None), ("ships", KeyError("street"))):
        listen(registry, name, what)
    said = failure("event", {"name": "order.paid"}, registry, **PAID)
    first = said.splitlines()[0]
    assert "2 of 3 listeners of event 'order.paid' failed: mails (" in first
    assert f"ships ({__file__}:" in first
    assert "ValueError: no address" in said
    assert "KeyError: 'street'" in said
    assert "/jobpool/child/" not in said


def test_data_that_can_never_fit_end_the_job_after_the_other_listeners(registry: HandlerRegistry) -> None:
    seen: list[str] = []

    @registry.listener("order.paid")
    def typed(ctx: JobContext, order: Order) -> None:
        raise AssertionError("never")

    listen(registry, "after", None, seen)
    made = attempt("event", {"name": "order.paid", "data": {"number": "x"}}, registry, **PAID)
    assert made.kind is ResultKind.UNRECOVERABLE
    assert "the payload does not fit listener 'typed': field 'number' must be a whole number, not 'x'" in made.error
    assert seen == ["after"]


def test_the_hard_timeout_ends_it_between_listeners_too(registry: HandlerRegistry) -> None:
    seen: list[str] = []

    @registry.listener("order.paid")
    def hangs(ctx: JobContext) -> None:
        time.sleep(30)

    listen(registry, "after", None, seen)
    assert attempt("event", {"name": "order.paid"}, registry, timeout=0.1, **PAID).kind is ResultKind.TIMEOUT
    assert seen == []


def test_the_same_listener_twice_is_one(registry: HandlerRegistry) -> None:
    seen: list[str] = []
    for _ in range(2):
        listen(registry, "a", None, seen)
    output("event", {"name": "order.paid"}, registry, **PAID)
    assert seen == ["a"]


def test_what_cannot_listen_is_refused_when_it_is_registered(registry: HandlerRegistry) -> None:
    with pytest.raises(ConfigurationError, match=r"listener of event 'x', .*must take the job's context"):
        registry.listener("x")(lambda: None)
    with pytest.raises(ConfigurationError, match=r"listener of event 'x', .*Order.*, is a class"):
        registry.listener("x")(Order)
    with pytest.raises(InvalidJob, match="event name '' is refused"):
        registry.listener("")(lambda ctx: None)


def test_sys_exit_ends_a_process_that_a_listener_forks_and_no_other_listener_runs_in_it(tmp_path: Path) -> None:
    registry, other = HandlerRegistry(), tmp_path / "other"

    @registry.listener("order.paid")
    def forks(ctx: JobContext) -> int:
        if not (pid := os.fork()):
            sys.exit(5)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @registry.listener("order.paid")
    def once(ctx: JobContext) -> None:
        other.touch(exist_ok=False)

    assert output("event", {"name": "order.paid"}, registry, allowed_events=("order.paid",)) == '{"forks":5}'
