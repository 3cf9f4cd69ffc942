"""The verdict on a message: the table of docs/architecture.md, "Verdicts", as one pure function.

The master and `QueueWorker` both call it, so that a message is treated alike wherever it ran. No I/O, no clock.
classify.py has the counters of each answer.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from jobpool.errors import LONGEST_WAIT_S
from jobpool.message import outcome as ended
from jobpool.message.death import cause_headline
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Leave, Move, Nack, Release, Settlement
from jobpool.policy.retry import RetryPolicy

NEVER_STARTED_LIMIT = 3  # children in a row that die before they begin a message: then the message is to blame
MAX_EXTRA_MOVES = 8
"""Moves of one message past its budget, between queues for larger machines. Pools that name each other end so."""

MIN_SNOOZE_S = 0.1  # without a delay it would be the first of its queue again, and no other job would run
SIGNATURE_CHARS = 64  # that signing adds to a body

LOOK_AGAIN_AFTER_S = 5.0
"""Seconds between two looks at a message whose handler, or wire version, this pool does not know."""

# Shared by all decisions: a no-op job costs no new object here.
ACK = Ack()
RELEASE = Release()
NOT_BEGUN = Release(begun=False)
LEASE_LOST = Leave("lease lost")


class Rules(Struct, frozen=True):
    """The pool's settings, as far as they bear on a verdict. Made once a handler, not once a message."""

    max_retries: int | None = None  # the handler's own, for jobs that set none; None = the retry policy's
    unknown_handler_grace: float = 600.0  # seconds, since a message was first seen, to wait for its handler
    on_crash: Literal["forfeit", "expire"] = "forfeit"  # end a crashed message's lease at once, or let it run out
    on_crash_queue: str | None = None  # where a crashed message goes on, unless it is there; None = in its queue
    memory_limit_queue: str | None = None  # the same after a kill for the memory limit, even past its budget
    backoff: RetryPolicy | None = None  # the waits of the handler's own; None = the pool's
    max_crashes: int = 5  # a crash beyond these moves nothing: the reaper makes a dead letter of it. 0 = no limit


def decide(
    outcome: ended.Outcome, lease: JobLease, rules: Rules, retry: RetryPolicy, now_boot: float
) -> Settlement | Leave:
    """Decide what becomes of the message, by the newest lease, whose body is decoded for failed attempts only.

    `now_boot`: CLOCK_BOOTTIME seconds. At `lease.expires_at` or after, nothing is settled.
    """
    if now_boot >= lease.expires_at or isinstance(outcome, ended.LostLease):
        return LEASE_LOST
    match outcome:
        case ended.Succeeded(follow_ups, result):
            return Ack(follow_ups, result) if follow_ups or result else ACK
        case ended.Failed(error, True, cause):
            return Abandon("unrecoverable", error, _output_unless_crashed(lease, cause))
        case ended.Failed(error, _, cause):
            return _failed("failed", error, lease, rules, retry, cause=_output_unless_crashed(lease, cause))
        case ended.RetryAsked(after, error, cause):
            return _failed("failed", error, lease, rules, retry, _bounded(after), _output_unless_crashed(lease, cause))
        case ended.TimedOut(error, cause):
            return _failed("timeout", error, lease, rules, retry, cause=cause)
        case ended.MemoryExceeded(error, cause):
            return _outgrown(error, cause, lease, rules, retry)
        case ended.Snoozed(delay):
            return Release(max(MIN_SNOOZE_S, _bounded(delay)))
        case ended.Stopped(delay):
            return Release(_bounded(delay)) if delay else RELEASE
        case ended.Contended(delay):
            return Release(_bounded(delay), begun=False)
        case ended.NeverStarted(times) if times < NEVER_STARTED_LIMIT:
            return NOT_BEGUN
        case ended.NotRun():
            return NOT_BEGUN
        case ended.Crashed(cause) | ended.NeverStarted(_, cause):
            return _no_verdict(cause, lease, rules)
        case ended.AlreadyDone(follow_ups):
            return Ack(follow_ups) if follow_ups else ACK
        case ended.NewerWire():
            return Release(LOOK_AGAIN_AFTER_S, begun=False)
        case ended.UnknownHandler(handler, seen_for):
            return _unknown(handler, seen_for, rules)
        case ended.Rejected() | ended.HandlerNotAllowed() | ended.Cancelled() | ended.Expired():
            return _given_up(outcome, lease)


def _given_up(
    outcome: ended.Rejected | ended.HandlerNotAllowed | ended.Cancelled | ended.Expired, lease: JobLease
) -> Abandon:
    """Make a dead letter of what must not run, or no more."""
    match outcome:
        case ended.Rejected(why):
            return Abandon("rejected", why)
        case ended.HandlerNotAllowed(handler):
            return Abandon("handler-not-allowed", f"handler {handler!r} is not allowed on this queue")
        case ended.Cancelled(error, cause):
            return Abandon("cancelled", error, _output_unless_crashed(lease, cause))
        case ended.Expired():
            return Abandon("expired", "not started before it expired")


def _failed(
    reason: str,
    error: str,
    lease: JobLease,
    rules: Rules,
    retry: RetryPolicy,
    delay: float | None = None,
    cause: str | None = None,
) -> Settlement:
    """Try again, or give up if the attempt that is spent was the last. `delay`: that the handler has asked for."""
    failures, attempts = lease.attempts + 1, budget(lease, rules, retry)
    if failures >= attempts:
        asked_in_vain = (
            "" if delay is None else f"; no retry is left: attempt {failures} of {attempts} (see max_retries)"
        )
        return Abandon(reason, error + asked_in_vain, cause)
    return Nack((rules.backoff or retry).delay(failures) if delay is None else delay, error, cause)


def _output_unless_crashed(lease: JobLease, printed: str | None) -> str | None:
    """Return the record of what was printed, unless the message may have that of a crash, which says more."""
    return None if lease.crashes else printed


def budget(lease: JobLease, rules: Rules, retry: RetryPolicy) -> int:
    """Return how many attempts the message gets in all, 1 or more."""
    asked = lease.envelope.max_retries
    return retry.budget(rules.max_retries if asked is None else asked)


def _outgrown(error: str, cause: str | None, lease: JobLease, rules: Rules, retry: RetryPolicy) -> Settlement:
    """Too large for these machines: it gets one run on larger ones, also when this was its last attempt."""
    queue = rules.memory_limit_queue
    if queue is None or not _can_go(lease, queue) or lease.attempts >= budget(lease, rules, retry) + MAX_EXTRA_MOVES:
        return _failed("memory-limit", error, lease, rules, retry, cause=cause)
    return Move(queue, attempts=1, error=error, cause=cause)


def _no_verdict(cause: str, lease: JobLease, rules: Rules) -> Settlement | Leave:
    queue = rules.on_crash_queue
    is_last = 0 < rules.max_crashes <= lease.crashes
    if queue is not None and _can_go(lease, queue) and not is_last:
        return Move(queue, crashes=1, cause=cause)
    if rules.on_crash == "forfeit":
        return Forfeit(cause)
    return Leave(f"left to expire: {cause_headline(cause)}")


def _can_go(lease: JobLease, queue: str) -> bool:
    """Return whether it is another queue, whose name and a signature cannot make the body too large to be read."""
    return queue != lease.queue and len(lease.body) + len(queue) + SIGNATURE_CHARS <= MAX_BODY_BYTES


def _unknown(handler: str, seen_for: float, rules: Rules) -> Settlement:
    """Wait for a while: in a rolling deploy another pool may know the handler, or this one may soon."""
    remaining = rules.unknown_handler_grace - seen_for
    if remaining > 0:
        return Release(min(LOOK_AGAIN_AFTER_S, remaining), begun=False)
    waited = f"no handler {handler!r} here, after {seen_for:.0f} s of waiting for one"
    mend = f"import its module with --app, or keep a former name as an alias: jobpool.handler({handler!r})(function)"
    return Abandon("unknown-handler", f"{waited}; {mend}; then retry the message")


def _bounded(delay: float) -> float:
    """Return `delay` as a broker can store it. A handler may have asked for anything, such as infinity."""
    return min(max(0.0, delay), LONGEST_WAIT_S)
