"""The errors of jobpool: few, and each tells the caller what to do."""

from __future__ import annotations

import copyreg
import errno
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

NO_APP = "no application: name the module with your handlers, --app myapp.jobs or apps in jobpool.toml"
LONGEST_WAIT_S = 100 * 366 * 86400.0  # of every duration: far below what a timer or a date overflows at
ENQUEUE_LATER = "enqueue below `if __name__ == '__main__':`, or in a program of its own"
PASSING = frozenset(
    getattr(errno, f"E{name}")
    for name in ["ADDRINUSE", "ADDRNOTAVAIL", "DQUOT", "IO", "MFILE", "NFILE", "NOMEM", "NOSPC"]
)
"""Errors of the system that a later start may not meet, so that a service manager should try again."""
FORKED = "a process that the handler forked can neither enqueue nor ack: do it in the handler itself"


def is_debugging() -> bool:
    """Return whether JOBPOOL_DEBUG asks for tracebacks, and for memory that others can read."""
    return os.environ.get("JOBPOOL_DEBUG", "").strip().lower() not in ("", "0", "false", "no", "off")


class JobpoolError(Exception):
    """Base of every error that jobpool raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Let pickle restore it without a call of `__init__`: a handler's own process pool passes errors on so."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InvalidJob(JobpoolError, ValueError):
    """A definition, payload, name or policy is outside its documented range.

    Raised when the value is made, never later; the text names the bound. Mend the caller.
    """


class MalformedEnvelope(JobpoolError, ValueError):
    """A message body is not a wire object of ours. Abandon the message as `rejected`; never retry it."""


class BadSignature(MalformedEnvelope):
    """A message's `_sig` is missing or wrong under every known key. Abandon it as `rejected`."""


class BackendUnavailable(JobpoolError):
    """The broker did not answer: nothing is known. Safe to make the same call again.

    Never raised for an empty queue.
    """


class WriteRefused(BackendUnavailable):
    """The broker answered, and takes no such write for now: it is full, draining or read-only. Try again later.

    Attributes:
        answers: Of a settle call, in its order: the `Settled` of each; None for one that was refused, whose message is
            unchanged. Empty: the whole call was refused, and changed nothing.
    """

    def __init__(self, text: str, answers: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.answers = answers


class LeaseLost(JobpoolError):
    """The lease has ended: the message is settled, or somebody else may hold it. Do not settle it."""


class ClaimNotFound(JobpoolError):
    """The claim has ended, was released, or never was. Others may do the work for its messages again: roll back."""


class Forbidden(JobpoolError):
    """The message is held by a pool or by another claim. Leave it to its holder."""


class Unsupported(JobpoolError):
    """This broker cannot do that; the text names the capability. Choose another backend or leave it out."""


class ConfigurationError(JobpoolError):
    """A setting, option, URL or application module cannot work; the text names it and the mend."""


class AccessRefused(ConfigurationError):
    """The broker answers and refuses this client: its password, its rights, or a table or queue that is missing.

    The text names the mend. Nothing was changed. A pool that has worked waits until it is mended; others raise it.
    """


OUTAGES = (BackendUnavailable, AccessRefused)
"""Errors of the broker that a pool or scheduler waits out once it has worked."""


class NoResult(JobpoolError):
    """There is no result to return; the class says why."""


class UnknownJob(NoResult):
    """No job of this id is known: it never was, or was removed, or ended long ago and kept nothing."""


class ResultNotKept(NoResult):
    """The job is done, and its result was not kept, or not for so long: give `result_ttl`."""


class ResultTooLarge(NoResult):
    """The job is done, and its result has more bytes than are kept."""


class JobFailed(NoResult):
    """The job failed for good: it is dead, expired or cancelled. `status` has the rest."""

    def __init__(self, text: str, status: Any) -> None:
        super().__init__(text)
        self.status = status


class ResultPending(NoResult, TimeoutError):
    """The job has not ended within the time. Ask again."""


class Unrecoverable(JobpoolError):
    """Raised by a handler: the job can never succeed. It is abandoned at once, whatever budget is left.

    Counts anywhere in the cause chain of what the handler raised.
    """


class Retry(JobpoolError):
    """Raised by a handler: try again after `after` seconds (0 to a hundred years). Burns one attempt."""

    def __init__(self, after: float | timedelta = 0.0, reason: str = "") -> None:
        self.after = check_seconds(after, "after")
        super().__init__(reason or f"retry asked for after {self.after:.12g} s")


class Snooze(JobpoolError):
    """Raised by a handler: give the message back for `after` seconds (0.1 to a hundred years). Burns no attempt.

    A shorter one takes 0.1 seconds too: back at its old place at once, it would let no other job of its queue run.
    """

    def __init__(self, after: float | timedelta = 0.0, reason: str = "") -> None:
        self.after = check_seconds(after, "after")
        super().__init__(reason or f"snoozed for {self.after:.12g} s")


class HardTimeout(BaseException):
    """Raised in a handler by the alarm when its time is up.

    A `BaseException`, so that `except Exception` does not swallow it. Once it was raised the verdict is
    *timeout*, whatever the handler does with it.
    """


class Cancelled(BaseException):
    """Raised in a handler when a person cancels its job (docs/control.md).

    A `BaseException`, as `HardTimeout`. Once it was raised the job is cancelled, whatever the handler does with it.
    """


def check_seconds(value: float | timedelta, what: str, *, zero: bool = True) -> float:
    """Return a duration as a float, or raise `InvalidJob`: seconds, or a `timedelta`, from 0 to a hundred years.

    `zero`: False = it must be more than that.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and 0 <= seconds <= LONGEST_WAIT_S and (zero or seconds)):
        bounds = "0 to" if zero else "more than 0 and at most"
        raise InvalidJob(f"{what} must be {bounds} {LONGEST_WAIT_S:.0f} seconds, or a timedelta, not {value!r}")
    return float(seconds)
