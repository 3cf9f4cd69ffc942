"""From what a child said, or how it died, to the outcome of its attempt. Pure: no I/O, no clock."""

from __future__ import annotations

import signal
from collections.abc import Callable

from jobpool.definition import JobDefinition
from jobpool.errors import InvalidJob, JobpoolError
from jobpool.master.slots import Ending
from jobpool.mechanism.frames import Exited, Result, Verdict
from jobpool.outcome import (
    Crashed,
    Failed,
    HandlerNotAllowed,
    LostLease,
    MemoryExceeded,
    Outcome,
    RetryAsked,
    Snoozed,
    Stopped,
    Succeeded,
    TimedOut,
    UnknownHandler,
)

SUCCEEDED = Succeeded()


def outcome_of(
    verdict: Verdict,
    *,
    handler: str,
    error: str,
    after: float,
    follow_ups: tuple[JobDefinition, ...],
    seen_for: float,
) -> Outcome:
    """What a child's (or `QueueWorker`'s) own word on an attempt means. `seen_for`: see `UnknownHandler`."""
    match verdict:
        case Verdict.SUCCEEDED:
            return Succeeded(follow_ups)
        case Verdict.FAILED:
            return Failed(error)
        case Verdict.UNRECOVERABLE:
            return Failed(error, permanent=True)
        case Verdict.RETRY:
            return RetryAsked(after, error)
        case Verdict.SNOOZE:
            return Snoozed(after)
        case Verdict.TIMEOUT:
            return TimedOut(error)
        case Verdict.UNKNOWN_HANDLER:
            return UnknownHandler(handler, seen_for)
        case Verdict.NOT_ALLOWED:
            return HandlerNotAllowed(handler)


def outcome_of_result(result: Result, handler: str, seen_for: float) -> Outcome:
    """What a child's `Result` means."""
    if result.verdict is Verdict.SUCCEEDED and not result.follow_ups:
        return SUCCEEDED
    try:
        follow_ups = tuple(JobDefinition.from_dict(item) for item in result.follow_ups)
    except (InvalidJob, KeyError, TypeError, ValueError) as error:
        return Failed(f"a follow-up job is not valid: {error}")
    return outcome_of(
        result.verdict,
        handler=handler,
        error=result.error,
        after=result.after,
        follow_ups=follow_ups,
        seen_for=seen_for,
    )


def checked(outcome: Outcome, check: Callable[[JobDefinition], object]) -> Outcome:
    """The outcome; a failure when `check` (`QueueBackend.pack`) refuses a follow-up: its ack could never be settled."""
    if not isinstance(outcome, Succeeded) or not outcome.follow_ups:
        return outcome
    try:
        for definition in outcome.follow_ups:
            check(definition)
    except JobpoolError as error:
        return Failed(f"a follow-up job is refused: {error}", permanent=True)
    return outcome


def outcome_of_death(exited: Exited, ending: Ending, ending_text: str, stack: str, output: str) -> Outcome:
    """What it means for the running attempt that its child died before it answered."""
    match ending:
        case Ending.TIMEOUT:
            return TimedOut(_join(ending_text, users_stack(stack)))
        case Ending.MEMORY:
            return MemoryExceeded(_join(ending_text, users_stack(stack)))
        case Ending.STOP:
            return Stopped()
        case Ending.LOST:
            return LostLease()
        case _:
            return Crashed(_join(cause_of_death(exited, ending_text), users_stack(stack), output))


def cause_of_death(exited: Exited, said: str = "") -> str:
    """One line: how the process ended, and with how much memory and CPU time."""
    if exited.signal is not None:
        how = f"killed by {signal_name(exited.signal)}"
    elif exited.code == 0:
        how = "exited with status 0 in the middle of an attempt"
    else:
        how = f"exited with status {exited.code}"
    core = ", core dumped" if exited.core else ""
    peak = exited.peak_rss / 2**20
    note = f" ({said})" if said else ""
    return f"{how}{note}{core}; peak memory {peak:.0f} MiB, CPU {exited.cpu_seconds:.2f} s"


def signal_name(number: int) -> str:
    """SIGSEGV for 11; the number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_OURS = ("/jobpool/mechanism/", "/jobpool/child/", "<frozen runpy>")


def users_stack(stack: str) -> str:
    """A fault handler's dump without the frames that lead from the interpreter's start to the handler."""
    lines = stack.strip().splitlines()
    return "\n".join(line for line in lines if not any(ours in line for ours in _OURS))


def _join(*parts: str) -> str:
    return "\n".join(stripped for part in parts if (stripped := part.strip()))
