"""One attempt at one job, in this process: from the handler's name to an `Attempt`.

All user code runs inside `Alarm.call`, hooks, exceptions' texts and returned values' `repr` included. So nothing of it
outlasts the hard timeout, and no `HardTimeout` gets out.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from functools import cache, partial
from pkgutil import resolve_name
from time import monotonic
from types import AsyncGeneratorType, GeneratorType, MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import orjson
from msgspec import Struct

from jobpool.child.capture import Capture
from jobpool.errors import FORKED, ConfigurationError, InvalidJob, Unsupported
from jobpool.handlers import ending
from jobpool.handlers import event_loop as loops
from jobpool.handlers.ending import Attempt
from jobpool.handlers.handler import AnyHandler
from jobpool.handlers.hooks import Hooks
from jobpool.handlers.registry import HandlerNotAllowed, HandlerRegistry, UnknownHandler
from jobpool.ipc.alarm import A, Alarm, R, borrowed
from jobpool.ipc.frames import MAX_ENQUEUED_BYTES
from jobpool.message.capped_text import DEFAULT_CAP
from jobpool.message.context import JobContext, go_on
from jobpool.message.definition import JobDefinition, check_enqueue_to, result_ttl_of
from jobpool.message.envelope import JobEnvelope
from jobpool.message.masking import Masker
from jobpool.message.outcome import ExecutionResult, ResultKind, overran

if TYPE_CHECKING:
    from jobpool.broker.values import NewMessage, Ticket

DOUBLE = 75  # exit status of a process that a handler forked and that came back from it: there is one of us already

Progress = Callable[[float, str], object]
OwnAck = Callable[[object, Sequence[JobDefinition]], Callable[[], bool]]
"""Acks on the handler's connection, with follow-ups; returns a test whether the transaction is still open."""

Packer = Callable[[Sequence[JobDefinition]], "list[NewMessage]"]
"""Signs jobs: the master, asked over the channel, or a backend of this process."""

LAZY = "returned a generator, whose code never ran: take the yield out, or return a list"
_masker = cache(Masker)  # with the keys that are secret by themselves
ENDED = "this attempt has ended, and its context with it: a thread that goes on enqueues with jobpool.Jobs()"
LEFT_OPEN = "the transaction in which the handler acked its message was left open: commit it before the handler returns"


class JobToRun(Struct):
    """The facts of a message that an attempt needs."""

    envelope: JobEnvelope  # decoded, its signature verified
    fence: int = 1  # the message's deliveries
    crashes: int = 0  # deliveries so far that ended with no verdict
    timeout: float = 0.0  # seconds; 0 = unlimited
    max_retries: int | None = None  # the value that applies, if it is not the envelope's
    ack: OwnAck | None = None  # None = the handler may not ack the message itself

    def retries(self, handler: AnyHandler) -> int | None:
        """Return the value that applies, else the job's, else its handler's; None = the pool's policy decides."""
        asked = self.envelope.max_retries if self.max_retries is None else self.max_retries
        return handler.max_retries if asked is None else asked


class SoftAlarm(Alarm):
    """An alarm for threads that are not the main one, where Python delivers no signal: it interrupts nothing.

    A handler that returns late has timed out all the same, so the verdict is the one that a pool would give.
    """

    def arm(self, seconds: float) -> None:
        self._deadline = monotonic() + seconds if seconds > 0 else math.inf

    def disarm(self) -> None:
        pass

    def call(self, function: Callable[[A], R], argument: A) -> tuple[R | None, BaseException | None]:
        try:
            return function(argument), None
        except BaseException as raised:  # noqa: BLE001 - as in `Alarm`, whose signal is not ours to set
            return None, raised


class NoCapture(Capture):
    """The lack of a capture, for threads other than the main one: `sys.stdout` belongs to all of them."""

    def begin(self) -> None:
        pass


class AttemptRunner:
    """A runner of attempts, one after the other, in the process and thread that made it.

    Args:
        output_cap: Bytes of output, and of error text, that are kept.
        more_output: Asked once an attempt for text that was printed past `sys.stdout`.
        enqueue_to: The only queues that follow-ups may go to; empty = any.
        cut: Descriptors of the app's import that this process does not have, as people know them.
        masker: For results that are kept; None = one with the keys that are secret by themselves.
        result_ttls: By queue, the seconds that results are kept of jobs for which neither job nor handler says.
    """

    def __init__(
        self,
        registry: HandlerRegistry,
        alarm: Alarm,
        capture: Capture,
        output_cap: int = DEFAULT_CAP,
        more_output: Callable[[], str] = str,
        enqueue_to: Collection[str] = (),
        cut: Collection[str] = (),
        masker: Masker | None = None,
        result_ttls: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._registry = registry
        self._cut = cut
        self._hooks = registry.hooks if registry.hooks or registry.hooks.death_handler else None
        self._alarm = alarm
        self._capture = capture
        self._cap = output_cap
        self._more_output = more_output
        self._enqueue_to = enqueue_to
        self._masker = masker
        self._result_ttls = result_ttls
        self._pid = os.getpid()
        alarm.on_fire = loops.stop

    def run(self, job: JobToRun, progress: Progress | None = None) -> Attempt:
        """Run one attempt. Raises only what `more_output` raises. `progress` is called for every `ctx.progress`.

        Blocks until the handler is done, or as long as it resists `HardTimeout`.
        """
        name, started = job.envelope.job, monotonic()
        try:
            handler = self._registry.resolve(name, job.envelope.queue)
            _ = handler.bound
        except UnknownHandler as error:
            return Attempt(ResultKind.UNKNOWN_HANDLER, error=str(error), handler=name, started=started)
        except HandlerNotAllowed as error:
            return Attempt(ResultKind.NOT_ALLOWED, error=str(error), handler=name, started=started)
        except ConfigurationError as error:
            return Attempt(ResultKind.FAILED, error=str(error), handler=name, started=started)
        reporter = _Reporter(progress, job.ack, self._enqueue_to, self._pid)
        # In a context of its own: a context variable that hooks or the handler set is gone with the attempt.
        return copy_context().run(self._run, handler, job, reporter, started)

    def _run(self, handler: AnyHandler, job: JobToRun, reporter: _Reporter, started: float) -> Attempt:
        started_at = time.time()
        self._capture.begin()
        self._alarm.arm(job.timeout)
        deadline = started + job.timeout if job.timeout > 0 else None
        ctx = JobContext(
            job.envelope,
            reporter,
            fence=job.fence,
            crashes=job.crashes,
            max_retries=job.retries(handler),
            deadline=deadline,
        )
        masker = None  # nothing is kept
        if (handler.result_ttl or job.envelope.meta or self._result_ttls) and not handler.ack_in_transaction:
            of_queue = self._result_ttls.get(job.envelope.queue)
            if result_ttl_of(job.envelope.result_ttl, handler.result_ttl, of_queue) > 0:
                masker = self._masker or _masker()
        attempt = self._call(handler, ctx, masker)
        attempt.handler, attempt.daemons = job.envelope.job, handler.allow_daemons
        attempt.started, attempt.started_at = started, started_at
        if self._cut and attempt.error:
            attempt.error = ending.with_cut_hint(attempt.error, self._cut)
        self._end(attempt, job)
        if reporter.left_open():
            attempt.left_open = True
            if attempt.kind is ResultKind.SUCCEEDED:
                attempt.kind, attempt.error = ResultKind.FAILED, LEFT_OPEN
        if handler.after_run is not None:
            self._after(handler.after_run, attempt, job)
        if self._hooks is not None:
            self._after(partial(self._hooks.after_attempt, ctx), attempt, job, self._hooks)
            attempt.hook_threads = self._hooks.threads
            if not isinstance(attempt.exception, KeyboardInterrupt):
                attempt.exception = None
        reporter.end()
        if attempt.kind is ResultKind.SUCCEEDED and reporter.follow_ups:
            attempt.follow_ups = reporter.follow_ups
        return attempt

    def _call(self, handler: AnyHandler, ctx: JobContext, masker: Masker | None) -> Attempt:
        attempt, raised = self._alarm.call(_user_code, (handler, ctx, self._cap, self._hooks, masker, self._pid))
        if os.getpid() != self._pid:
            os._exit(DOUBLE)
        if raised is not None:  # while the handler's own error was being put into words
            attempt = Attempt(ResultKind.FAILED, error=ending.named(raised), suspect=ending.is_suspect(raised))
            attempt.exception = raised if isinstance(raised, KeyboardInterrupt) else None
        return attempt  # type: ignore[return-value]

    def _end(self, attempt: Attempt, job: JobToRun) -> None:
        now = monotonic()
        attempt.duration = now - attempt.started
        if printed := ending.join(self._capture.text(), self._more_output(), self._cap):
            attempt.output = ending.join(attempt.output, printed, self._cap)
        hook = ""
        if self._hooks is not None:
            hook, self._hooks.running = self._hooks.running, ""
        if self._alarm.cancelled:
            if attempt.kind is not ResultKind.CANCELLED:
                attempt.kind = ResultKind.CANCELLED
                attempt.error = ending.where_met("cancelled by a person", self._alarm.stack, self._cap, hook)
        elif attempt.kind is not ResultKind.TIMEOUT and self._alarm.expired(now):
            attempt.kind = ResultKind.TIMEOUT
            name = job.envelope.name or job.envelope.job
            attempt.error = ending.where_met(overran(name, job.timeout), self._alarm.stack, self._cap, hook)

    def _after(
        self, hook: Callable[[ExecutionResult], object], attempt: Attempt, job: JobToRun, hooks: Hooks | None = None
    ) -> None:
        self._capture.begin()
        self._alarm.call(_after_run, (hook, attempt.result, hooks, self._pid))
        if os.getpid() != self._pid:
            os._exit(DOUBLE)
        self._end(attempt, job)


def run_attempt(job: JobToRun, registry: HandlerRegistry, *, progress: Progress | None = None) -> Attempt:
    """Run one attempt in the caller's process, and leave its streams, alarm and signal mask as they were.

    In the main thread it runs as in a child. In any other thread there is no alarm and no capture: a handler that hangs
    is not stopped. One that returns late has timed out.

    Blocks until the handler is done, or as long as it resists `HardTimeout`: no master kills it here.
    """
    if threading.current_thread() is not threading.main_thread():
        return AttemptRunner(registry, SoftAlarm(), NoCapture()).run(job, progress)
    capture = Capture()
    with borrowed(), capture.lent():
        return AttemptRunner(registry, Alarm(), capture).run(job, progress)


class _Reporter:
    """Progress and follow-ups that the handler reports through its context."""

    __slots__ = ("_ack", "_bytes", "_enqueue_to", "_pid", "_progress", "_still_open", "follow_ups")

    def __init__(self, progress: Progress | None, ack: OwnAck | None, enqueue_to: Collection[str], pid: int) -> None:
        self._enqueue_to = enqueue_to
        self._pid = pid
        self._progress = progress
        self._ack = ack
        self._still_open: Callable[[], bool] | None = None
        self.follow_ups: list[JobDefinition] = []
        self._bytes = 0

    def progress(self, fraction: float, text: str, /) -> None:
        if (report := self._progress) is not None:
            report(fraction, text)

    def end(self) -> None:
        """Take in nothing more: a thread that the handler has left running would tell of the next attempt."""
        self._pid, self._progress = 0, None

    def _check_attempt(self) -> None:
        if os.getpid() != self._pid:  # what is noted in a fork never comes back from it
            raise Unsupported(FORKED if self._pid else ENDED)

    def follow_up(self, definition: JobDefinition, /) -> None:
        self._check_attempt()
        if self._still_open is not None:
            raise Unsupported("this job has acked itself: enqueue its follow-ups before ctx.ack(connection)")
        check_enqueue_to(definition, self._enqueue_to)
        size = self._bytes + len(orjson.dumps(definition.to_dict())) + 1
        if size > MAX_ENQUEUED_BYTES:
            raise InvalidJob(
                f"the follow-ups of one job have at most {MAX_ENQUEUED_BYTES} bytes together: give them less data"
                " and say where the rest is, or let one follow-up enqueue the others"
            )
        self._bytes = size
        self.follow_ups.append(definition)

    def ack(self, connection: object, /) -> None:
        self._check_attempt()
        if self._ack is None:
            raise Unsupported("ctx.ack needs a handler that is declared with ack_in_transaction=True")
        self._still_open = self._ack(connection, self.follow_ups)

    def left_open(self) -> bool:
        return self._still_open is not None and self._still_open()


def _user_code(task: tuple[AnyHandler, JobContext, int, Hooks | None, Masker | None, int]) -> Attempt:
    """Run user code, under the alarm only. All user code runs below this frame, and its exceptions end here."""
    handler, ctx, cap, hooks, masker, pid = task
    try:
        if hooks is not None:
            hooks.before_attempt(ctx)
        if handler.before_run is not None:
            handler.before_run(ctx)
        value = handler.bound(ctx)
        go_on(ctx, value, ending.plain)
        if value is None and masker is None:
            return Attempt(ResultKind.SUCCEEDED)
        if isinstance(value, GeneratorType | AsyncGeneratorType):  # from a decorator's wrapper, which hid it until now
            raise ConfigurationError(f"handler {ctx.handler!r} {LAZY}")
        output, kept = ending.rendered(value, masker, cap)
        return Attempt(ResultKind.SUCCEEDED, output, kept)
    except BaseException as error:  # noqa: BLE001 - SystemExit, KeyboardInterrupt and HardTimeout fail the attempt
        if isinstance(error, SystemExit) and os.getpid() != pid:
            _exit(error.code)
        return ending.of_error(error, cap) if hooks is None else ending.of_hook(error, cap, hooks.running)


def _exit(code: object) -> NoReturn:
    """End a process that a handler forked as `sys.exit(code)` ends a program of its own."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    os._exit((code or 0) & 0xFF)


def _after_run(task: tuple[Callable[[ExecutionResult], object], ExecutionResult, Hooks | None, int]) -> None:
    """Call the hook, under the alarm only. `hooks`: it calls these, and they know which one runs."""
    hook, result, hooks, pid = task
    try:
        hook(result)
    except BaseException as error:  # its errors are logged, never a verdict
        if isinstance(error, SystemExit) and os.getpid() != pid:
            _exit(error.code)
        import logging

        name = "after_run" if hooks is None else f"the {hooks.running}"
        logging.getLogger("jobpool.child").exception("%s of handler %r failed", name, result.handler)


def own_ack(ticket: bytes | Ticket, pack: Packer) -> OwnAck:
    """Return the function for `ctx.ack`: it acks on the connection it is given, and enqueues the follow-ups there.

    `ticket` is that of `QueueBackend.ticket`, as it is or as JSON. It names the backend's function, which is imported
    only when a handler calls `ctx.ack`: the only code of a broker that a child ever runs.
    """

    def ack(connection: object, follow_ups: Sequence[JobDefinition]) -> Callable[[], bool]:
        read: Ticket = orjson.loads(ticket) if isinstance(ticket, bytes) else ticket
        messages = pack(follow_ups) if follow_ups else []
        function: Callable[..., Callable[[], bool]] = resolve_name(str(read["ack"]))
        return function(connection, read, messages)

    return ack
