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
class Failed:  # the handler raised (`SystemExit` too)
    error: str
    permanent: bool = False  # `Unrecoverable` is in the cause chain


@dataclass(frozen=True, slots=True)
class RetryAsked:  # the handler raised `Retry(after=…)`: its own delay, burns an attempt
    after: float
    error: str


@dataclass(frozen=True, slots=True)
class Snoozed:  # the handler raised `Snooze(after)`: no attempt is burnt
    after: float


@dataclass(frozen=True, slots=True)
class TimedOut:  # the alarm fired, or the master killed the child at deadline + grace
    error: str  # holds the stack
    cause: str | None = None  # here and below: the record of the death, as text (death.py)


@dataclass(frozen=True, slots=True)
class MemoryExceeded:  # killed for its memory limit
    error: str  # names the peak
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Crashed:  # the child ended with no verdict: a signal, `os._exit`, exec, a broken channel
    cause: str


@dataclass(frozen=True, slots=True)
class Stopped:  # killed by a stop or a reload past its grace, or with its fork server
    delay: float = 0.0  # seconds until it may run again


@dataclass(frozen=True, slots=True)
class NeverStarted:  # the child died before it reported STARTED
    times: int  # in a row for this message, this one included
    cause: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """Leased and never handed to a handler: look-ahead that was too long, a pool that stops."""


@dataclass(frozen=True, slots=True)
class LostLease:
    """The lease could not be renewed in time."""


@dataclass(frozen=True, slots=True)
class Rejected:  # bad signature, foreign queue, body that is not a wire object, or is too large or too deep
    why: str
    signature: bool = False  # it was the signature, not the body's form or its queue; only a counter differs


@dataclass(frozen=True, slots=True)
class NewerWire:  # the wire version is newer than this worker understands: a deploy is rolling
    version: int


@dataclass(frozen=True, slots=True)
class UnknownHandler:  # no such handler here
    handler: str
    seen_for: float  # seconds since this pool first saw the message


@dataclass(frozen=True, slots=True)
class HandlerNotAllowed:  # the handler exists and may not run on this queue
    handler: str


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The idempotency key is done."""


@dataclass(frozen=True, slots=True)
class Contended:  # the idempotency key, single-instance lock or concurrency slot is held elsewhere
    delay: float  # seconds until it is tried again


@dataclass(frozen=True, slots=True)
class Expired:
    """`expires_in` ran out before the job was started."""


Ended = Succeeded | Failed | RetryAsked | Snoozed | TimedOut | MemoryExceeded | Crashed
GivenBack = Stopped | NeverStarted | NotRun | LostLease | NewerWire | Contended
Refused = Rejected | UnknownHandler | HandlerNotAllowed | AlreadyDone | Expired
Outcome = Ended | GivenBack | Refused
