"""Attempts in this process, as `QueueWorker` runs them."""

# ruff: noqa: ARG001, ARG005 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any, TypeVar

import pytest

from jobpool.child.attempt import LAZY, JobToRun, run_attempt
from jobpool.errors import FORKED, Retry, Snooze, Unrecoverable, Unsupported
from jobpool.handlers import event_loop as loops
from jobpool.handlers.ending import Attempt, chain
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.capped_text import DEFAULT_CAP
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import decode, encode
from jobpool.message.outcome import ExecutionResult, ResultKind, overran
from jobpool.message.printable import headline
from jobpool.message.signing import EnvelopeSigner

T = TypeVar("T")


def job(handler: str = "it", *, timeout: float = 0.0, **fields: Any) -> JobToRun:
    definition = JobDefinition(handler, **fields)
    body = encode(definition, identifier="a1", queue="default", signer=EnvelopeSigner(), now=0.0)
    return JobToRun(decode(body, attempts=0), timeout=timeout)


def attempt(function: Callable[..., Any], *, timeout: float = 0.0, **options: Any) -> Attempt:
    registry = HandlerRegistry()
    registry.handler("it", **options)(function)
    return run_attempt(job(timeout=timeout), registry)


def test_the_context_tells_the_retries_of_the_job_else_of_its_handler(registry: HandlerRegistry) -> None:
    registry.handler("it", max_retries=2)(lambda ctx: ctx.max_retries)
    registry.handler("plain")(lambda ctx: ctx.max_retries)
    rows = [(job(), "2"), (job(max_retries=0), "0"), (job("plain"), ""), (job("plain", max_retries=5), "5")]
    for made, told in rows:
        assert run_attempt(made, registry).output == told
    of_the_pool = job(max_retries=9)
    of_the_pool.max_retries = 4
    assert run_attempt(of_the_pool, registry).output == "4", "the value that applies"


def raising(error: BaseException, cause: BaseException | None = None) -> Callable[[JobContext], None]:
    def function(ctx: JobContext) -> None:
        raise error from cause

    return function


def in_context(ctx: JobContext) -> None:
    try:
        raise Unrecoverable("inner")
    except Unrecoverable:
        raise ValueError("outer")  # noqa: B904 - the context is the point


def cut_off(ctx: JobContext) -> None:
    try:
        raise Unrecoverable("inner")
    except Unrecoverable:
        raise ValueError("outer") from None


def test_the_verdict() -> None:
    for case, function, kind, after in [
        ("returns", lambda ctx: None, ResultKind.SUCCEEDED, 0.0),
        ("exception", raising(ValueError("x")), ResultKind.FAILED, 0.0),
        ("sys.exit(0)", raising(SystemExit(0)), ResultKind.FAILED, 0.0),
        ("KeyboardInterrupt", raising(KeyboardInterrupt()), ResultKind.FAILED, 0.0),
        ("GeneratorExit", raising(GeneratorExit()), ResultKind.FAILED, 0.0),
        ("Unrecoverable", raising(Unrecoverable("x")), ResultKind.UNRECOVERABLE, 0.0),
        ("in the cause", raising(ValueError(), Unrecoverable()), ResultKind.UNRECOVERABLE, 0.0),
        ("in the context", in_context, ResultKind.UNRECOVERABLE, 0.0),
        ("context cut off", cut_off, ResultKind.FAILED, 0.0),
        ("in a group", raising(ExceptionGroup("g", [ValueError(), Unrecoverable()])), ResultKind.UNRECOVERABLE, 0.0),
        ("Retry", raising(Retry(2.5)), ResultKind.RETRY, 2.5),
        ("Retry of a hopeless job", raising(Retry(1), Unrecoverable()), ResultKind.UNRECOVERABLE, 0.0),
        ("Snooze", raising(Snooze(9)), ResultKind.SNOOZE, 9.0),
    ]:
        made = attempt(function)
        assert (made.kind, made.after) == (kind, after), case
        assert (made.error == "") == (kind is ResultKind.SUCCEEDED), case


def test_the_result_is_that_of_the_documents() -> None:
    before = time.time()
    made = attempt(lambda ctx: {"pages": 3})
    result = made.result
    assert (result.success, result.output, result.error, result.handler) == (True, '{"pages":3}', None, "it")
    assert before - 1 <= result.started_at <= result.ended_at <= time.time() + 1
    assert attempt(raising(ValueError("boo"))).result.error


def test_the_traceback_starts_in_the_handler() -> None:
    lines = attempt(raising(ValueError("boo"))).error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_child_attempt.py" in lines[1]
    assert lines[-1] == "ValueError: boo"


def test_a_retry_names_the_error_that_it_is_for() -> None:
    last = attempt(raising(Retry(2), ValueError("boo"))).error.splitlines()[-1]
    assert last == "jobpool.errors.Retry: retry asked for after 2 s (ValueError: boo)"


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_a_wait_that_the_handler_has_spoilt_is_a_failed_attempt(kind: type[Retry | Snooze]) -> None:
    error = kind(after=1)
    error.after = "soon"  # type: ignore[assignment]
    made = attempt(raising(error))
    assert (made.kind, made.after) == (ResultKind.FAILED, 0.0)
    assert made.error.endswith("(after must be 0 to 3162240000 seconds, or a timedelta, not 'soon')")


@pytest.mark.parametrize(
    "message", ["remote:\n", "\nDuring handling of the above exception, another exception occurred:\n\n"]
)
def test_a_traceback_that_a_message_quotes_is_not_taken_for_the_errors_own(message: str) -> None:
    quoting = f"no answer\n{message}Traceback (most recent call last):\n  File 'x'\nKeyError: fake"
    assert headline(attempt(raising(ValueError(quoting))).error) == "ValueError: no answer"


def test_an_error_that_comes_from_another_process_has_the_headline_of_its_own() -> None:
    frames = 'Traceback (most recent call last):\n  File "x.py", line 1, in work\n'
    chained = f"{frames}KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n{frames}"
    remote = RemoteTraceback(f'\n"""\n{chained}ValueError: boom\nmore\n"""')
    for error, line in [(ValueError("boom\nmore"), "ValueError: boom"), (OSError(), "OSError")]:
        assert headline(attempt(raising(error, remote)).error) == line


def test_a_huge_error_is_cut() -> None:
    error = attempt(raising(ValueError("x" * 100_000))).error
    assert len(error) < DEFAULT_CAP + 100
    assert "bytes dropped" in error


def test_endless_recursion_fails_the_attempt() -> None:
    def again(ctx: JobContext) -> None:
        again(ctx)

    assert "RecursionError" in attempt(again).error


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert len(list(chain(first))) == 2


def test_hooks_and_handler_run_in_order() -> None:
    seen: list[Any] = []
    made = attempt(
        lambda ctx: seen.append("handler"),
        before_run=lambda ctx: seen.append(("before", ctx.attempt)),
        after_run=lambda result: seen.append(result),
    )
    assert seen[:2] == [("before", 1), "handler"]
    assert isinstance(seen[2], ExecutionResult)
    assert made.kind is ResultKind.SUCCEEDED


def test_a_failing_before_run_fails_the_attempt_and_the_handler_never_runs() -> None:
    seen: list[Any] = []

    def refuse(ctx: JobContext) -> None:
        raise ValueError("not today")

    made = attempt(lambda ctx: seen.append("handler"), before_run=refuse, after_run=seen.append)
    assert made.kind is ResultKind.FAILED
    assert "not today" in made.error
    [result] = seen
    assert result.success is False


def test_a_failing_after_run_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(result: ExecutionResult) -> None:
        raise SystemExit(1)

    with caplog.at_level(logging.ERROR):
        made = attempt(lambda ctx: "fine", after_run=refuse)
    assert (made.kind, made.output.split("\n")[0]) == (ResultKind.SUCCEEDED, "fine")
    assert "after_run of handler 'it' failed" in caplog.text


def test_follow_ups_come_with_success_only() -> None:
    def enqueue(ctx: JobContext) -> None:
        ctx.enqueue("next", {"n": 1})

    def enqueue_and_fail(ctx: JobContext) -> None:
        enqueue(ctx)
        raise ValueError

    assert [definition.handler for definition in attempt(enqueue).follow_ups] == ["next"]
    assert list(attempt(enqueue_and_fail).follow_ups) == []


def test_follow_ups_above_their_bound_fail_the_attempt() -> None:
    made = attempt(lambda ctx: [ctx.enqueue("next", "x" * 1_000_000) for _ in range(9)])
    assert made.kind is ResultKind.FAILED
    assert "at most 8388608 bytes together" in made.error


def test_a_generator_that_a_decorator_has_hidden_is_a_failed_attempt() -> None:
    def generates() -> Iterator[int]:
        yield 1

    async def generates_too() -> AsyncIterator[int]:
        yield 1

    def hidden(function: Callable[[], object]) -> Callable[[JobContext], object]:
        return lambda ctx: function()

    for function in (generates, generates_too):
        made = attempt(hidden(function))
        assert (made.kind, made.error) == (ResultKind.FAILED, f"handler 'it' {LAZY}")


def test_a_forked_process_neither_enqueues_nor_acks() -> None:
    def in_a_fork(ctx: JobContext) -> str:
        reading, writing = os.pipe()
        if not (pid := os.fork()):
            for call in (lambda: ctx.enqueue("next"), lambda: ctx.ack(None)):
                try:
                    call()
                    os.write(writing, b"taken\n")
                except Unsupported as refused:
                    os.write(writing, f"{refused}\n".encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writing)
        with os.fdopen(reading) as said:
            return said.read()

    made = attempt(in_a_fork)
    assert made.output == f"{FORKED}\n" * 2
    assert not made.follow_ups


def test_a_thread_that_is_left_running_can_do_nothing_with_the_context_of_its_attempt(
    registry: HandlerRegistry,
) -> None:
    kept, told = list[JobContext](), list[float]()
    registry.handler("it")(kept.append)
    run_attempt(job(), registry, progress=lambda fraction, text: told.append(fraction))
    kept[0].progress(0.5, "of the next attempt")
    with pytest.raises(Unsupported, match="this attempt has ended"):
        kept[0].enqueue("next")
    assert told == []


def test_a_timeout_ends_the_handler_and_says_so(registry: HandlerRegistry) -> None:
    registry.handler("it")(lambda ctx: time.sleep(30))
    made = run_attempt(job(name="nightly", timeout=0.05), registry)
    assert made.kind is ResultKind.TIMEOUT
    assert made.error.startswith("Job 'nightly' exceeded maximum execution time of 0.05 seconds.\n")
    assert "time.sleep(30)" in made.error


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.0, "1"), (3600.0, "3600"), (1234567.0, "1234567"), (0.5, "0.5"), (1e-9, "1e-09")]
)
def test_the_seconds_of_a_timeout_are_written_plainly(seconds: float, text: str) -> None:
    assert overran("n", seconds) == f"Job 'n' exceeded maximum execution time of {text} seconds."


def test_the_headline_of_an_error_with_notes_names_what_the_child_does_not_have() -> None:
    from jobpool.handlers.ending import with_cut_hint

    told = "Traceback (most recent call last):\n  File …\nOperationalError: {}\n[SQL: insert]"
    error = with_cut_hint(told.format("disk I/O error"), ["own.db"])
    assert "disk I/O error (the app's import opened" in error
    assert "own.db" in (headline(error) or "")
    assert error.endswith("\n[SQL: insert]")
    assert with_cut_hint(told.format("no such table"), ["own.db"]) == told.format("no such table")


def test_streams_and_alarm_are_given_back() -> None:
    def mine(*_: Any) -> None: ...

    before = sys.stdout, sys.stderr, signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, mine)
    signal.setitimer(signal.ITIMER_REAL, 100.0, 5.0)
    try:
        attempt(lambda ctx: print("x"), timeout=1.0)
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 90 < left <= 100
        assert interval == 5.0
        assert signal.getsignal(signal.SIGALRM) is mine
        assert (sys.stdout, sys.stderr) == before[:2]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[2])


def test_an_attempt_inside_an_attempt_leaves_the_outer_alarm_alone() -> None:
    def outer(ctx: JobContext) -> None:
        assert attempt(lambda _: time.sleep(30), timeout=0.02).kind is ResultKind.TIMEOUT
        time.sleep(30)

    made = attempt(outer, timeout=0.1)
    assert made.kind is ResultKind.TIMEOUT
    assert made.duration < 5


def on_another_thread(run: Callable[[], T]) -> T:
    """What it returns there; the event loop of that thread is closed then."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(run).result()
        finally:
            thread.submit(loops.close).result()


def test_off_the_main_thread_a_late_return_is_a_timeout() -> None:
    late = on_another_thread(lambda: attempt(lambda ctx: time.sleep(0.05), timeout=0.02))
    printing = on_another_thread(lambda: attempt(lambda ctx: print("shown, not captured"), timeout=5.0))
    assert (late.kind, printing.kind, printing.output) == (ResultKind.TIMEOUT, ResultKind.SUCCEEDED, "")


async def answer(ctx: JobContext) -> int:
    return 42


class Query:
    """Work that begins when it is awaited, and is not a coroutine."""

    def __await__(self) -> Generator[None, None, int]:
        yield from asyncio.sleep(0).__await__()
        return 42


def test_whatever_a_handler_returns_to_be_awaited_is_awaited() -> None:
    assert attempt(lambda ctx: Query()).output == "42"
    loops.close()


def test_async_handlers_run_on_any_thread() -> None:
    assert [attempt(answer).output, on_another_thread(lambda: attempt(answer).output)] == ["42", "42"]
    loops.close()


async def spoil_executor() -> None:
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        await asyncio.to_thread(int)


async def shut_executor() -> None:
    await asyncio.get_running_loop().shutdown_default_executor()


async def leave_timer() -> None:
    asyncio.get_running_loop().call_later(0.001, _interrupt)


async def leave_callback() -> None:
    asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, _interrupt)


async def leave_task() -> None:
    asyncio.create_task(asyncio.sleep(60))  # noqa: RUF006 - what is left here is to be cancelled


async def set_factory() -> None:
    asyncio.get_running_loop().set_task_factory(lambda *_, **__: None)  # type: ignore[arg-type]


async def debug() -> None:
    asyncio.get_running_loop().set_debug(True)


def _interrupt() -> None:
    raise KeyboardInterrupt("of the job before")


async def look_about() -> tuple[int, int, bool]:
    tasks = len(asyncio.all_tasks())
    await asyncio.sleep(0.003)
    return tasks, await asyncio.create_task(asyncio.to_thread(lambda: 42)), asyncio.get_running_loop().get_debug()


@pytest.mark.parametrize(
    "spoil", [spoil_executor, shut_executor, leave_timer, leave_callback, leave_task, set_factory, debug]
)
def test_nothing_that_an_async_handler_does_to_its_loop_meets_the_next_one(
    spoil: Callable[[], Awaitable[None]],
) -> None:
    """All on a thread of their own, so on a loop of their own."""

    def run() -> object:
        loops.awaited(spoil())
        found = loops.awaited(look_about())
        loops.awaited(spoil())
        return found

    assert on_another_thread(run) == (1, 42, False)


@pytest.mark.parametrize("spoil", [leave_timer, leave_callback, set_factory, debug])
def test_a_loop_is_kept_with_the_connections_of_an_app_unless_its_threads_were_used(
    spoil: Callable[[], Awaitable[None]],
) -> None:
    used: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        used.append(asyncio.get_running_loop())

    async def nested() -> None:
        await note()
        inner = note()
        with pytest.raises(RuntimeError, match="running"):
            loops.awaited(inner)

    def run() -> None:
        for work in (note, spoil, note, nested, note):
            loops.awaited(work())

    on_another_thread(run)
    assert len(used) == 4
    assert len(set(used)) == 1


def test_a_program_that_has_run_a_coroutine_ends_without_a_word() -> None:
    """Its modules go before the loop where asyncio is imported last."""
    code = (
        "import jobpool\n@jobpool.handler\nasync def job(): pass\n"
        "schedules = jobpool.Scheduler()\nschedules.define('job')\n"
        "jobpool.CronRunner(schedules, jobpool.open_backend('memory://')).run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60.0, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_context_variables_last_for_one_attempt_from_its_first_hook_to_its_last() -> None:
    tenant, seen = ContextVar("tenant", default="none"), list[str]()
    registry = HandlerRegistry()

    @registry.handler(before_run=lambda ctx: tenant.set("acme"), after_run=lambda result: seen.append(tenant.get()))
    def works(ctx: JobContext) -> str:
        return tenant.get()

    @registry.handler
    def looks(ctx: JobContext) -> str:
        return tenant.get()

    outputs = [run_attempt(job(name), registry).output for name in ("works", "looks")]
    assert (outputs, seen) == (["acme", "none"], ["acme"])
