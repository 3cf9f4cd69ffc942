"""From what a child said, or how it died, to the outcome of its attempt. Pure: no I/O, no clock."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection

from jobpool.errors import JobpoolError
from jobpool.message.death import Death, Exit
from jobpool.message.definition import JobDefinition
from jobpool.message.names import check_enqueue_to
from jobpool.message.outcome import (
    Crashed,
    EndReason,
    Failed,
    HandlerNotAllowed,
    LostLease,
    MemoryExceeded,
    Outcome,
    ResultKind,
    RetryAsked,
    Snoozed,
    Stopped,
    Succeeded,
    TimedOut,
    UnknownHandler,
)


def outcome_of(
    kind: ResultKind,
    *,
    handler: str,
    error: str,
    after: float,
    follow_ups: tuple[JobDefinition, ...],
    seen_for: float,
    output: str = "",
    peak: int = 0,
) -> Outcome:
    """Return the outcome that a child's or `QueueWorker`'s word on an attempt means. `seen_for`: see `UnknownHandler`.

    `output` and `peak` (bytes) are for the record of a timeout.
    """
    match kind:
        case ResultKind.SUCCEEDED:
            return Succeeded(follow_ups)
        case ResultKind.FAILED:
            return Failed(error)
        case ResultKind.UNRECOVERABLE:
            return Failed(error, permanent=True)
        case ResultKind.RETRY:
            return RetryAsked(after, error)
        case ResultKind.SNOOZE:
            return Snoozed(after)
        case ResultKind.TIMEOUT:
            return TimedOut(error, by_alarm(error, peak, output).to_text())
        case ResultKind.UNKNOWN_HANDLER:
            return UnknownHandler(handler, seen_for)
        case ResultKind.NOT_ALLOWED:
            return HandlerNotAllowed(handler)


def checked(outcome: Outcome, check: Callable[[JobDefinition], object], enqueue_to: Collection[str] = ()) -> Outcome:
    """The outcome; a failure when a follow-up is refused, whose ack could then never be settled.

    Args:
        outcome: Of the attempt.
        check: `QueueBackend.pack`.
        enqueue_to: The only queues that follow-ups may go to; empty = any.
    """
    if not isinstance(outcome, Succeeded) or not outcome.follow_ups:
        return outcome
    try:
        for definition in outcome.follow_ups:
            check_enqueue_to(definition.queue, enqueue_to)
            check(definition)
    except JobpoolError as error:
        return Failed(f"a follow-up job is refused: {error}", permanent=True)
    return outcome


def outcome_of_death(ending: EndReason, ending_text: str, death: Death) -> Outcome:
    """Return the outcome of the running attempt of a child that died before it answered."""
    match ending:
        case EndReason.TIMEOUT:
            return TimedOut(_join(ending_text, death.stack), death.to_text())
        case EndReason.MEMORY:
            return MemoryExceeded(_join(ending_text, death.stack), death.to_text())
        case EndReason.STOP:
            return Stopped()
        case EndReason.LOST:
            return LostLease()
        case _:
            return Crashed(death.to_text())


def death_of(exited: Exit, ending: EndReason, killer: str = "", stack: str = "", output: str = "") -> Death:
    """The record of a child's death. `killer`: who sent SIGKILL, as far as it is known, if the master did not."""
    return Death(
        _OWN_WORDS.get(ending) or how_it_ended(exited),
        sent_by=sender_of(exited, ending, killer),
        stack=users_stack(stack),
        peak_memory=exited.peak_rss,
        cpu_seconds=round(exited.cpu_seconds, 3),
        output=output.strip(),
        core=exited.core,
    )


def by_alarm(error: str, peak: int = 0, output: str = "") -> Death:
    """The record of an attempt that its alarm ended in the handler: the child lives, and has told the stack itself."""
    return Death(
        "timeout", f"the pool: {EndReason.TIMEOUT.value}", error.partition("\n")[2], peak, output=output.strip()
    )


def how_it_ended(exited: Exit) -> str:
    """`killed by SIGSEGV`, `exited with status 3`."""
    if exited.signal is not None:
        return f"killed by {signal_name(exited.signal)}"
    if exited.code == 0:
        return "exited with status 0 in the middle of an attempt"
    return f"exited with status {exited.code}"


def sender_of(exited: Exit, ending: EndReason, killer: str) -> str:
    """Name who ended it. A process's own signals cannot be told from those of others, but for faults."""
    number = exited.signal
    if ending in _OWN_WORDS or (number == signal.SIGKILL and ending is not EndReason.NONE):
        return f"the pool: {_OWN_WORDS.get(ending, ending.value)}"
    if number is None or number in _FAULTS:
        return "itself"
    if number in _LIMITS:
        return "the kernel: a resource limit"
    return killer or "outside, or the kernel" if number == signal.SIGKILL else "outside"


_OWN_WORDS = {EndReason.TIMEOUT: "timeout", EndReason.MEMORY: "memory limit"}
_FAULTS = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
        *(signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
    }
)
_LIMITS = frozenset({signal.SIGXCPU, signal.SIGXFSZ})


def signal_name(number: int) -> str:
    """SIGSEGV for 11; the number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_OURS = ("/jobpool/ipc/", "/jobpool/child/", "/jobpool/handlers/", "<frozen runpy>")


def users_stack(stack: str) -> str:
    """A fault handler's dump without the frames that lead from the interpreter's start to the handler."""
    lines = stack.strip().splitlines()
    return "\n".join(line for line in lines if not any(ours in line for ours in _OURS))


def _join(*parts: str) -> str:
    return "\n".join(stripped for part in parts if (stripped := part.strip()))
