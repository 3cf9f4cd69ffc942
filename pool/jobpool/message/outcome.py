"""How a delivery ended, and how a pool counts it: `Outcome` is the input of the settlement decision.

One frozen class a row of the table in docs/architecture.md, "Verdicts". `error` texts are what a person reads later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum

from msgspec import Struct

from jobpool.message.definition import JobDefinition, SentJobs
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


class Succeeded(Struct, frozen=True):
    follow_ups: tuple[JobDefinition, ...] | SentJobs = ()
    result: Kept | None = None  # for the broker to keep; None = nothing


class Failed(Struct, frozen=True):  # the handler raised (`SystemExit` too)
    error: str
    permanent: bool = False  # `Unrecoverable` is in the cause chain
    cause: str | None = None  # a record (death.py) of what it printed; None = nothing


class RetryAsked(Struct, frozen=True):  # the handler raised `Retry(after=…)`: its own delay, burns an attempt
    after: float
    error: str
    cause: str | None = None  # as in `Failed`


class Snoozed(Struct, frozen=True):  # the handler raised `Snooze(after)`: no attempt is burnt
    after: float


class TimedOut(Struct, frozen=True):  # the alarm fired, or the master killed the child at deadline + grace
    error: str  # holds the stack
    cause: str | None = None  # here and below: the record of the death, as text (death.py)


def overran(name: str, seconds: float) -> str:
    """Return the sentence about an attempt that ran into its timeout (seconds)."""
    return f"Job '{name}' exceeded maximum execution time of {seconds:.12g} seconds."


class MemoryExceeded(Struct, frozen=True):  # killed for its memory limit
    error: str  # names the peak
    cause: str | None = None


class Crashed(Struct, frozen=True):  # the child ended with no verdict: a signal, `os._exit`, exec, a broken channel
    cause: str


class Stopped(Struct, frozen=True):  # killed by a stop or a reload past its grace, or with its fork server
    delay: float = 0.0  # seconds until it may run again


class NeverStarted(Struct, frozen=True):  # the child died before it reported STARTED
    times: int  # in a row for this message, this one included
    cause: str


class NotRun(Struct, frozen=True):
    """Leased and never handed to a handler: look-ahead that was too long, a pool that stops."""


class LostLease(Struct, frozen=True):
    """The lease could not be renewed in time."""


class Rejected(Struct, frozen=True):  # bad signature, foreign queue, or a body that is malformed, too large or too deep
    why: str
    signature: bool = False  # it was the signature, not the body's form or its queue; only a counter differs


class NewerWire(Struct, frozen=True):  # the wire version is newer than this worker understands: a deploy is rolling
    version: int


class UnknownHandler(Struct, frozen=True):  # no such handler here
    handler: str
    seen_for: float  # seconds since this pool first saw the message


class HandlerNotAllowed(Struct, frozen=True):  # the handler exists and may not run on this queue
    handler: str


class AlreadyDone(Struct, frozen=True):  # the idempotency key is done
    follow_ups: tuple[JobDefinition, ...] | SentJobs = ()  # the next job of its chain: a skipped one does not end that


class Contended(Struct, frozen=True):  # the idempotency key, single-instance lock or concurrency slot is held elsewhere
    delay: float  # seconds until it is tried again
    taken: str = ""  # the name of what is held: `queue`, `job:NAME`, `concurrency:KEY`, or the idempotency key


class Expired(Struct, frozen=True):
    """`expires_in` ran out before the job was started."""


class Cancelled(Struct, frozen=True):  # a person asked for it, before the job ended otherwise
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


class Counts(Struct, frozen=True):
    """The counters of a pool since its start: scoreboard, log and metrics take theirs from this table.

    Settlements are counted when the broker has accepted them.
    """

    fetched: int = 0
    succeeded: int = 0
    failed: int = 0
    requeued: int = 0
    dead: int = 0
    skipped: int = 0
    rejected: int = 0
    timed_out: int = 0
    crashed: int = 0
    released: int = 0
    lost: int = 0
    reaped: int = 0
    moved: int = 0
    cancelled: int = 0


_OTHER_SUMS: dict[str, tuple[str, ...]] = {
    "fetched": (),  # a metric of its own
    "dead": ("failed_permanently",),
    "skipped": ("skipped_idempotent",),
    "rejected": ("rejected_signature", "rejected_payload"),
    "lost": ("lease_lost",),
}
SUMS = {name: _OTHER_SUMS.get(name, (name,)) for name in Counts.__struct_fields__}
"""Counter → the values of the label `outcome` of `jobpool_jobs_total` that it sums up. They are also the names of
`QueueWorker.counters`, less `jobs_`."""

OUTCOMES: tuple[str, ...] = tuple(outcome for outcomes in SUMS.values() for outcome in outcomes)
