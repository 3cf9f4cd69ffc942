# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from support.tables import row

from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.handlers.handler import Handler
from jobpool.handlers.registry import HandlerNotAllowed, HandlerRegistry, UnknownHandler
from jobpool.ipc.frames import HandlerInfo
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition


def build_report(ctx: JobContext, customer: int) -> str:
    """Build it."""
    return f"report {customer}"


def other(ctx: JobContext) -> None: ...


async def hook(_: Any) -> None: ...


def test_a_bare_decorator_takes_the_functions_name(registry: HandlerRegistry) -> None:
    made = registry.handler(build_report)
    assert isinstance(made, Handler)
    assert registry.resolve("build_report", "any") is made
    assert made.__doc__ == "Build it."
    assert made.__name__ == "build_report"


def test_a_decorator_with_arguments_keeps_them(registry: HandlerRegistry) -> None:
    registry.handler("report", queue="reports", max_retries=3, timeout=60)(build_report)
    registry.handler(name="anything", queue=["a", "b"])(other)
    assert registry.names() == ["anything", "report"]
    assert registry.infos() == [
        HandlerInfo("anything", queues=["a", "b"]),
        HandlerInfo("report", 3, 60.0, queues=["reports"]),
    ]
    assert [registry.resolve(name, "any").queues for name in registry.names()] == [("a", "b"), ("reports",)]


def test_a_job_goes_to_the_handlers_queue_and_leaves_the_other_options_to_the_run(registry: HandlerRegistry) -> None:
    """So a deploy changes them for waiting jobs too."""
    made = registry.handler("report", queue="reports", max_retries=3, timeout=60)(build_report)
    assert made.define(customer=7).to_definition() == JobDefinition("report", {"customer": 7}, queue="reports")


def test_a_queues_list_of_handlers_is_honoured(registry: HandlerRegistry) -> None:
    for case, allowed, queue, refused in [
        ("absent: free", {}, "reports", None),
        ("other queues do not matter", {"other": []}, "reports", None),
        ("present: those", {"reports": ["report"]}, "reports", None),
        ("present: only those", {"reports": ["mail"]}, "reports", HandlerNotAllowed),
        ("empty: none", {"reports": []}, "reports", HandlerNotAllowed),
    ]:
        made = registry.handler("report")(build_report)
        registry.restrict(cast(dict[str, list[str]], allowed))
        if refused is None:
            assert registry.resolve("report", queue) is made, case
        else:
            with row(case), pytest.raises(refused, match="handler 'report' is not allowed on queue 'reports'"):
                registry.resolve("report", queue)


def test_an_unknown_handler_is_unknown_whatever_the_queue_allows(registry: HandlerRegistry) -> None:
    registry.restrict({"reports": []})
    with pytest.raises(UnknownHandler, match="no handler is named 'report' here"):
        registry.resolve("report", "reports")


def test_two_functions_of_one_name_are_refused_naming_both_places(registry: HandlerRegistry) -> None:
    registry.handler("report")(build_report)
    with pytest.raises(ConfigurationError) as raised:
        registry.handler("report")(other)
    text = str(raised.value)
    assert "two handlers are named 'report'" in text
    assert text.count("test_child_registry.py:") == 2
    assert "build_report" in text
    assert "other" in text


@pytest.mark.parametrize("thing", [5, sys, property(len), ["build_report"]])
def test_what_cannot_be_called_is_no_handler(registry: HandlerRegistry, thing: Any) -> None:
    for decorate in (registry.handler, registry.handler("report")):
        with pytest.raises(ConfigurationError, match="a handler is a function, or a class with a method run, and not"):
            decorate(thing)
    with pytest.raises(ConfigurationError, match="and not None"):
        registry.handler("report")(None)  # type: ignore[call-overload]


def test_the_same_function_again_replaces_itself(registry: HandlerRegistry) -> None:
    registry.handler("report")(build_report)
    again = registry.handler("report")(build_report)
    assert registry.resolve("report", "any") is again


def test_a_function_that_is_written_again_in_a_notebook_takes_its_own_place(registry: HandlerRegistry) -> None:
    def run_cell(text: str, **names: object) -> None:
        names |= {"registry": registry, "__name__": "__main__"}
        exec(compile(text, f"/tmp/ipykernel_7/{hash(text)}.py", "exec"), names)

    for version in ("", "n: int = 1", "n: int = 2"):
        run_cell(f"\n@registry.handler\ndef report({version}): ...")
        run_cell(f"@registry.handler('class')\nclass Report:\n  def run(self, {version}): ...")
    assert registry.resolve("report", "any").function.__defaults__ == (2,)
    for other in ("registry.handler('report')(lambda: 1)", "@registry.handler('report')\ndef other(): ..."):
        with pytest.raises(ConfigurationError, match=r"two handlers are named 'report': __main__ \(report\) and "):
            run_cell(other)
    with pytest.raises(ConfigurationError, match="two handlers are named 'report'"):
        run_cell("@registry.handler\ndef report(): ...", __file__="app.py")


def test_a_bad_option_is_refused(registry: HandlerRegistry) -> None:
    for options, text in [
        ({"max_retries": -1}, "max_retries of handler 'report' must be a whole number from 0 to 2147483647, not -1"),
        ({"max_retries": 2**31}, "max_retries of handler 'report' must be a whole number from 0 to 2147483647"),
        ({"max_retries": True}, "must be a whole number"),
        ({"backoff": "linear"}, "backoff of handler 'report': must be 'none', 'fixed' or 'exponential'"),
        ({"backoff": "fixed attempts=3"}, "backoff of handler 'report': takes no attempts=: write max_retries="),
        ({"backoff": 5}, "backoff of handler 'report': must be a text, not 5"),
        ({"timeout": -1}, "timeout of handler 'report'"),
        ({"timeout": 1e300}, "timeout of handler 'report' must be 0 to"),
        ({"result_ttl": 1e300}, "result_ttl of handler 'report' must be 0 to"),
        ({"queue": 5}, "queue of handler 'report' must be a queue's name, or some, not 5"),
        ({"queue": "no good"}, "queue name 'no good' is refused"),
        ({"before_run": 7}, "before_run of handler 'report' must be a plain function, not 7"),
        ({"after_run": hook}, "after_run of handler 'report' must be a plain function"),
    ]:
        decorate: Callable[..., Any] = registry.handler("report", **cast(dict[str, Any], options))
        with row(options), pytest.raises(InvalidJob) as raised:
            decorate(build_report)
        assert text in str(raised.value), options
        assert registry.names() == [], options


def test_seconds_may_be_a_timedelta(registry: HandlerRegistry) -> None:
    minute = timedelta(minutes=1)
    made = registry.handler("report", timeout=minute, result_ttl=minute)(build_report)
    registry.builtin("url", timeout=minute)
    [url] = [info for info in registry.built_in_infos() if info.name == "url"]
    found = made.timeout, made.result_ttl, made.info.timeout, url.timeout
    assert [(value, type(value)) for value in found] == [(60.0, float)] * 4


def test_an_unknown_option_is_answered_with_what_is_meant(registry: HandlerRegistry) -> None:
    for option, text in [
        ("max_retry", "a handler has no option 'max_retry'; write max_retries"),
        ("autoretry_for", "a handler has no option 'autoretry_for'; write max_retries (every exception is retried)"),
        ("frobnicate", "a handler has no option 'frobnicate'; there are queue, max_retries"),
    ]:
        with row(option), pytest.raises(TypeError) as raised:
            registry.handler("report", **cast(dict[str, Any], {option: 3}))
        assert str(raised.value).startswith(text), option


def test_an_attribute_of_the_function_does_not_shadow_the_handlers(registry: HandlerRegistry) -> None:
    def odd(ctx: JobContext) -> None: ...

    odd.name = "wrong"  # type: ignore[attr-defined]
    assert registry.handler("right")(odd).name == "right"
