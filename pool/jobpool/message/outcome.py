"""How a delivery ended, and how a pool counts it: `Outcome` is the input of the settlement decision.

One frozen class a row of the table in docs/architecture.md, "Verdicts". `error` texts are what a person reads later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum, StrEnum

from jobpool.message.definition import JobDefinition
from jobpool.message.results import Kept


class ResultKind(IntEnum):
    """The end of an attempt, as the child saw it."""

    SUCCEEDED = 0
    FAILED = 1
    UNRECOVERABLE = 2
    RETRY = 3
    SNOOZE = 4
    TIMEOUT = 5
    UNKNOWN_HANDLER = 6
    NOT_ALLOWED = 7
    CANCELLED = 8


class EndReason(Enum):
    """Why the master ended a child, or let it end."""

    NONE = "none"
    TIMEOUT = "timeout"
    MEMORY = "memory-limit"
    STOP = "stop"
    LOST = "lease lost"
    CANCEL = "cancelled"
    RECYCLE = "recycle"
    RETIRE = "retire"
    PROTOCOL = "broken channel"
    BOOT = "boot timeout"
    SERVER = "its fork server has died"


@dataclass(frozen=True, slots=True)
class Succeeded:
    follow_ups: tuple[JobDefinition, ...] = ()
    result: Kept | None = None  # what the broker is to keep; None = nothing


@dataclass(frozen=True, slots=True)
class Failed:  # the handler raised (`SystemExit` too)
    error: str
    permanent: bool = False  # `Unrecoverable` is in the cause chain
    cause: str | None = None  # a record (death.py) of what it printed; None = nothing


@dataclass(frozen=True, slots=True)
class RetryAsked:  # the handler raised `Retry(after=…)`: its own delay, burns an attempt
    after: float
    error: str
    cause: str | None = None  # as in `Failed`


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


@dataclass(frozen=True, slots=True)
class Cancelled:  # a person asked for it, before the job ended otherwise
    error: str = "cancelled by a person"
    cause: str | None = None


Ended = Succeeded | Failed | RetryAsked | Snoozed | TimedOut | MemoryExceeded | Crashed | Cancelled
GivenBack = Stopped | NeverStarted | NotRun | LostLease | NewerWire | Contended
Refused = Rejected | UnknownHandler | HandlerNotAllowed | AlreadyDone | Expired
Outcome = Ended | GivenBack | Refused


class Status(StrEnum):
    """The end of one message in `QueueWorker.process_once`."""

    EMPTY = "empty"  # there was nothing to fetch
    ACKED = "acked"
    REQUEUED = "requeued"  # a failed attempt with budget left
    DEAD_LETTERED = "dead-lettered"  # failed for good
    REJECTED = "rejected"  # bad signature, foreign queue, or no wire object: never run
    SKIPPED_IDEMPOTENT = "skipped-idempotent"  # its idempotency key was done: acked without a run
    RELEASED = "released"  # given back unharmed
    LOST = "lost"  # the lease ended before the settlement: nothing was settled
    CRASHED = "crashed"  # no verdict: the lease was forfeited, or left to expire
    CANCELLED = "cancelled"  # by a person
    MOVED = "moved"  # crashed or outgrew its memory limit, and goes on in the queue that is set for this


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """One attempt. `output`: captured text and return value, capped; `error`: a traceback or stack. Times are Unix.

    `kind`: its end, such as `succeeded`, `failed`, `timeout`, `retry` or `snooze`. `exception`: raised by the handler
    or by a hook before it, and only there for `after_attempt` hooks.
    """

    success: bool
    output: str
    error: str | None
    started_at: float
    ended_at: float
    handler: str
    kind: str = ""
    exception: BaseException | None = None

    def duration_seconds(self) -> float:
        """Return how long it ran, >= 0 also when the wall clock was set back meanwhile."""
        return max(0.0, self.ended_at - self.started_at)


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The end of one message: `attempts` of it have ended, this one included; `error`: why, if it did not succeed."""

    status: Status
    attempts: int = 0
    error: str | None = None


def _counter(*outcomes: str) -> int:
    return field(default=0, metadata={"outcomes": outcomes})


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of a pool since its start: scoreboard, log and metrics take theirs from this table.

    Settlements are counted when the broker has accepted them. Each is the sum of some values of the label `outcome` of
    `jobpool_jobs_total`, which are also the names of `QueueWorker.counters`, less `jobs_`. `fetched` is a metric of its
    own.
    """

    fetched: int = _counter()
    succeeded: int = _counter("succeeded")
    failed: int = _counter("failed")
    requeued: int = _counter("requeued")
    dead: int = _counter("failed_permanently")
    skipped: int = _counter("skipped_idempotent")
    rejected: int = _counter("rejected_signature", "rejected_payload")
    timed_out: int = _counter("timed_out")
    crashed: int = _counter("crashed")
    released: int = _counter("released")
    lost: int = _counter("lease_lost")
    reaped: int = _counter("reaped")
    moved: int = _counter("moved")
    cancelled: int = _counter("cancelled")


# Counter → the outcomes that it sums up; and all values of the label `outcome`.
SUMS: dict[str, tuple[str, ...]] = {each.name: each.metadata["outcomes"] for each in fields(Counts)}
OUTCOMES: tuple[str, ...] = tuple(outcome for outcomes in SUMS.values() for outcome in outcomes)
