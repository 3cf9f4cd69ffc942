"""How a delivery ended, as the master (or `QueueWorker`) saw it: the input of the settlement decision.

One frozen class a row of the table in docs/architecture.md, "Verdicts". `error` texts are what a person reads later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from jobpool.message.definition import JobDefinition


class ResultKind(IntEnum):
    """How an attempt ended, as the child saw it."""

    SUCCEEDED = 0
    FAILED = 1
    UNRECOVERABLE = 2
    RETRY = 3
    SNOOZE = 4
    TIMEOUT = 5
    UNKNOWN_HANDLER = 6
    NOT_ALLOWED = 7


class EndReason(Enum):
    """Why the master ended a child, or let it end."""

    NONE = "none"
    TIMEOUT = "timeout"
    MEMORY = "memory-limit"
    STOP = "stop"
    LOST = "lease lost"
    RECYCLE = "recycle"
    RETIRE = "retire"
    PROTOCOL = "broken channel"
    BOOT = "boot timeout"
    SERVER = "its fork server has died"


@dataclass(frozen=True, slots=True)
class Succeeded:
    follow_ups: tuple[JobDefinition, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised (`SystemExit` too). `permanent`: `Unrecoverable` in the cause chain."""

    error: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """The handler raised `Retry(after=…)`: its own delay, burns an attempt."""

    after: float
    error: str


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler raised `Snooze(after)`: no attempt is burnt."""

    after: float


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The alarm fired, or the master killed the child at deadline + grace. `error` holds the stack.

    `cause`, here and below: the record of the death, as text (death.py).
    """

    error: str
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryExceeded:
    """Killed for its memory limit; `error` names the peak."""

    error: str
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Crashed:
    """The child ended with no verdict: a signal, `os._exit`, exec, a broken channel."""

    cause: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """Killed by a stop or a reload past its grace, or with its fork server; `delay`: seconds until it may run again."""

    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class NeverStarted:
    """The child died before it reported STARTED; `times` in a row for this message, this one included."""

    times: int
    cause: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """Leased and never handed to a handler: look-ahead that was too long, a pool that stops."""


@dataclass(frozen=True, slots=True)
class LostLease:
    """The lease could not be renewed in time."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Bad signature, foreign queue, body that is not a wire object, or is too large or too deep.

    `signature`: it was the signature, not the body's form or its queue; only a counter differs.
    """

    why: str
    signature: bool = False


@dataclass(frozen=True, slots=True)
class NewerWire:
    """The wire version is newer than this worker understands: a deploy is rolling."""

    version: int


@dataclass(frozen=True, slots=True)
class UnknownHandler:
    """No such handler here; `seen_for` seconds since this pool first saw the message."""

    handler: str
    seen_for: float


@dataclass(frozen=True, slots=True)
class HandlerNotAllowed:
    """The handler exists and may not run on this queue."""

    handler: str


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The idempotency key is done."""


@dataclass(frozen=True, slots=True)
class Contended:
    """The idempotency key, single-instance lock or concurrency slot is held elsewhere; try after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Expired:
    """`expires_in` ran out before the job was started."""


Ended = Succeeded | Failed | RetryAsked | Snoozed | TimedOut | MemoryExceeded | Crashed
GivenBack = Stopped | NeverStarted | NotRun | LostLease | NewerWire | Contended
Refused = Rejected | UnknownHandler | HandlerNotAllowed | AlreadyDone | Expired
Outcome = Ended | GivenBack | Refused
