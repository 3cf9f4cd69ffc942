"""How one attempt ended, and what the pipeline did with the message: for tests, history and callers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    MOVED = "moved"  # crashed or outgrew its memory limit, and goes on in the queue that is set for this


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """One attempt.

    `output` is captured text and return value, capped; `error` a traceback or stack, None on success; times are Unix
    times.
    """

    success: bool
    output: str
    error: str | None
    started_at: float
    ended_at: float
    handler: str

    def duration_seconds(self) -> float:
        """Return how long it ran, >= 0 also when the wall clock was set back meanwhile."""
        return max(0.0, self.ended_at - self.started_at)


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The end of one message: `attempts` of it have ended, this one included; `error`: why, if it did not succeed."""

    status: Status
    attempts: int = 0
    error: str | None = None
