"""App-wide hooks around an attempt: their order, what their errors mean, and how a record names them."""

# ruff: noqa: ARG001, ARG005 - a hook takes its arguments, whether it looks at them or not
from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_child_attempt import job

from jobpool.child.attempt import run_attempt
from jobpool.errors import ConfigurationError, Snooze, Unrecoverable
from jobpool.handlers.ending import Attempt
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.dead_letters import ON_DEATH, DeadJob
from jobpool.message.outcome import ExecutionResult, ResultKind
from jobpool.message.printable import headline


def nothing(ctx: JobContext) -> None: ...


def attempt(registry: HandlerRegistry, handler: Callable[[JobContext], Any] = nothing, timeout: float = 0.0) -> Attempt:
    registry.handler("it")(handler)
    return run_attempt(job(timeout=timeout), registry)


def raising(error: BaseException) -> Callable[..., None]:
    def hook(*_: object) -> None:
        raise error

    return hook


def test_they_run_in_order_before_and_in_the_opposite_order_after() -> None:
    registry, said = HandlerRegistry(), []
    for name in "ab":
        registry.before_attempt(lambda ctx, name=name: said.append(f"before {name} {ctx.id}"))
    registry.after_attempt(lambda ctx, result: said.append(f"after x {result.kind}"))

    @registry.after_attempt
    def last(ctx: JobContext, result: ExecutionResult) -> None:
        said.append("after y")

    assert attempt(registry, lambda ctx: said.append("handler")).kind is ResultKind.SUCCEEDED
    assert said == ["before a a1", "before b a1", "handler", "after y", "after x succeeded"]


def test_a_module_that_is_imported_under_two_names_registers_its_hooks_once() -> None:
    source = compile("def hook(dead): seen.append(__name__)\nregistry.on_death(hook)", "app.py", "exec")
    registry, seen = HandlerRegistry(), list[str]()
    for name in ("app", "shop.app", "shop.app"):
        exec(source, {"__name__": name, "__file__": "app.py", "registry": registry, "seen": seen})
    assert told(registry).kind is ResultKind.SUCCEEDED
    assert seen == ["shop.app", "shop.app"], "a second function of one module is another hook, as of a factory"


ENDS = [
    (ValueError("no"), ResultKind.FAILED, "failed"),
    (Unrecoverable("no"), ResultKind.UNRECOVERABLE, "unrecoverable"),
    (Snooze(5), ResultKind.SNOOZE, "snooze"),
    (SystemExit(3), ResultKind.FAILED, "failed"),
]


@pytest.mark.parametrize("where", ["handler", "before"])
def test_a_hook_after_the_attempt_gets_its_end_and_the_exception_itself(where: str) -> None:
    for error, kind, word in ENDS:
        registry, seen = HandlerRegistry(), list[ExecutionResult]()
        registry.after_attempt(lambda ctx, result, seen=seen: seen.append(result))
        if where == "before":
            registry.before_attempt(raising(error))
        end = attempt(registry, raising(error) if where == "handler" else nothing)
        [result] = seen
        assert (end.kind, result.kind, result.success) == (kind, word, False), error
        assert result.exception is error
        assert end.exception is None, "it is not kept with its frames"
        assert ("before_attempt hook" in end.error) == (where == "before"), error


def test_after_a_hook_that_failed_the_handler_does_not_run_and_the_error_names_the_hook() -> None:
    registry, ran = HandlerRegistry(), []
    registry.before_attempt(raising(ValueError("no tracer")))
    registry.after_attempt(lambda ctx, result: ran.append("after"))
    end = attempt(registry, lambda ctx: ran.append("handler"))
    assert ran == ["after"]
    first, *rest = end.error.splitlines()
    assert first.startswith("the before_attempt hook ")
    assert first.endswith("(raising.<locals>.hook) failed: ValueError: no tracer")
    assert headline(end.error) == first
    assert rest[-1] == "ValueError: no tracer"


def test_an_error_after_the_attempt_is_logged_and_the_other_hooks_run(caplog: pytest.LogCaptureFixture) -> None:
    registry, ran = HandlerRegistry(), []
    registry.after_attempt(lambda ctx, result: ran.append("first"))
    registry.after_attempt(raising(KeyError("gone")))
    registry.after_attempt(raising(SystemExit(3)))
    assert attempt(registry).kind is ResultKind.SUCCEEDED
    assert ran == ["first"]
    assert caplog.text.count("the after_attempt hook") == 2
    assert "KeyError: 'gone'" in caplog.text
    assert "SystemExit: 3" in caplog.text


@pytest.mark.parametrize("kind", ["before_attempt", "after_attempt"])
def test_a_hook_that_hangs_is_stopped_by_the_timeout_whose_text_names_it(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = HandlerRegistry()

    def hangs(*_: object) -> None:
        time.sleep(30)

    getattr(registry, kind)(hangs)
    end = attempt(registry, timeout=0.1)
    assert end.kind is ResultKind.TIMEOUT
    assert end.duration < 5
    assert end.error.splitlines()[1].startswith(f"It was in the {kind} hook ")
    assert "in hangs" in end.error
    lines = [record.getMessage() for record in caplog.records]
    assert [line.startswith("the after_attempt hook ") for line in lines] == [True] * (kind == "after_attempt")


def test_a_handler_that_hangs_is_not_taken_for_a_hook(registry: HandlerRegistry) -> None:
    registry.before_attempt(nothing)
    registry.after_attempt(lambda ctx, result: None)
    end = attempt(registry, lambda ctx: time.sleep(30), timeout=0.1)
    assert "in <lambda>" in end.error.splitlines()[1], "the stack, at once"


def test_threads_of_hooks_are_counted_apart_from_those_that_an_attempt_leaves() -> None:
    registry, over = HandlerRegistry(), threading.Event()
    left: list[threading.Thread] = []

    def start(ctx: JobContext) -> None:
        left.append(threading.Thread(target=over.wait))
        left[-1].start()

    registry.before_attempt(start)
    try:
        assert attempt(registry, start).hook_threads == 1
    finally:
        over.set()
        for thread in left:
            thread.join()


def test_each_hook_is_marked_before_it_runs_and_so_is_the_handler() -> None:
    registry, marks = HandlerRegistry(), list[str]()
    registry.hooks.mark = marks.append
    registry.before_attempt(nothing)
    registry.after_attempt(raising(ValueError()))
    attempt(registry)
    assert [mark.partition(" ")[0] for mark in marks] == ["before_attempt", "handler", "after_attempt"]


REFUSED = [("before_attempt", 3), ("on_death", "name"), ("after_attempt", None)]


async def later(*_: object) -> None: ...


def test_what_cannot_be_a_hook_is_refused_where_it_is_registered() -> None:
    for kind, hook in [*REFUSED, ("before_attempt", later), ("after_attempt", later)]:
        with pytest.raises(ConfigurationError, match=f"^{kind} takes a plain function"):
            getattr(HandlerRegistry(), kind)(hook)


@pytest.mark.parametrize("kind", ["before_attempt", "after_attempt", "on_death"])
def test_a_hook_that_cannot_take_what_it_is_given_is_refused_where_it_is_registered(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{kind} hook .*test_hooks.py:\d+ .* must take \("):
        getattr(HandlerRegistry(), kind)(lambda one, two, three: None)


def test_sys_exit_ends_a_process_that_a_hook_forks_and_no_other_hook_runs_in_it(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    def note(text: object) -> None:
        with notes.open("a") as file:
            print(text, file=file)

    def forks(*_: object) -> None:
        if not (pid := os.fork()):
            sys.exit(5)
        note(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    for kind in ("after_attempt", "on_death"):
        registry = HandlerRegistry()
        hooks = [forks, lambda *_: note("other")]
        for hook in hooks if kind == "on_death" else reversed(hooks):
            getattr(registry, kind)(hook)
        ended = told(registry) if kind == "on_death" else attempt(registry)
        assert ended.kind is ResultKind.SUCCEEDED
    registry = HandlerRegistry()
    registry.handler("it", after_run=forks)(nothing)
    assert run_attempt(job(), registry).kind is ResultKind.SUCCEEDED
    assert notes.read_text().split() == ["5", "other", "5", "other", "5"]


# --- on_death ---------------------------------------------------------------------------------------------------------

RECORD = {"id": "j1", "handler": "report", "name": "report", "queue": "default", "reason": "failed", "newer": True}


def told(registry: HandlerRegistry, payload: Any = RECORD) -> Attempt:
    return run_attempt(job(ON_DEATH, payload=payload), registry)


def test_all_hooks_get_the_record_plain_or_async() -> None:
    registry, seen = HandlerRegistry(), []

    @registry.on_death
    async def first(dead: DeadJob) -> None:
        seen.append(dead)

    @registry.on_death
    def second(dead: DeadJob) -> None:
        seen.append(dead)

    assert told(registry).kind is ResultKind.SUCCEEDED
    assert seen == [DeadJob("j1", "report", "report", "default", "failed")] * 2


def test_one_that_fails_keeps_no_other_from_running_and_the_attempt_fails_with_its_name() -> None:
    for error, said in ((ValueError("mail is down"), "ValueError: mail is down"), (SystemExit(1), "SystemExit: 1")):
        registry, seen = HandlerRegistry(), list[DeadJob]()
        registry.on_death(raising(error))
        registry.on_death(seen.append)
        end = told(registry)
        assert (end.kind, end.after, len(seen)) == (ResultKind.RETRY, 1.0, 1)
        assert said in end.error
        assert (headline(end.error) or "").endswith(f"(raising.<locals>.hook) failed: {said}")


def test_a_payload_that_is_no_record_is_a_failed_attempt() -> None:
    for payload in ([1], {"id": "j1"}):
        registry = HandlerRegistry()
        registry.on_death(lambda dead: None)
        end = told(registry, payload)
        assert (end.kind, "TypeError" in end.error) == (ResultKind.FAILED, True), payload


def test_a_hook_may_end_the_tries(registry: HandlerRegistry) -> None:
    registry.on_death(raising(Unrecoverable("no such project")))
    assert told(registry).kind is ResultKind.UNRECOVERABLE


def test_several_that_fail_are_told_together(registry: HandlerRegistry) -> None:
    registry.on_death(raising(ValueError("mail")))

    @registry.on_death
    def other(dead: DeadJob) -> None:
        raise KeyError("chat")

    error = told(registry).error
    assert error.count("the on_death hook ") == 2
    assert "ValueError: mail" in error
    assert "KeyError: 'chat'" in error


def test_without_a_hook_nothing_is_registered_for_it(registry: HandlerRegistry) -> None:
    assert told(registry).kind is ResultKind.UNKNOWN_HANDLER
    registry.before_attempt(nothing)
    assert [info.name for info in registry.infos()] == []
    registry.on_death(lambda dead: None)
    assert [info.name for info in registry.infos()] == [ON_DEATH]
    assert registry.why_empty(), "an app of hooks alone runs no job"


def test_queue_handlers_keep_it_out_as_any_other_handler(registry: HandlerRegistry) -> None:
    registry.on_death(lambda dead: None)
    registry.restrict({"default": ["report"]})
    assert told(registry).kind is ResultKind.NOT_ALLOWED
