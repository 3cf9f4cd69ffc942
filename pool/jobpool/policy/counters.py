"""The count of a settlement, once the broker has answered: a worker's status, and counters. Pure."""

from __future__ import annotations

from jobpool.message.outcome import (
    AlreadyDone,
    Crashed,
    Failed,
    MemoryExceeded,
    NeverStarted,
    Outcome,
    Rejected,
    RetryAsked,
    Status,
    Succeeded,
    TimedOut,
)
from jobpool.message.settlement import Abandon, Ack, Forfeit, Leave, Move, Nack, Release, Settled, Settlement
from jobpool.policy import decide

_STATUS: dict[type[Settlement | Leave], Status] = {
    Ack: Status.ACKED,
    Nack: Status.REQUEUED,
    Abandon: Status.DEAD_LETTERED,
    Release: Status.RELEASED,
    Forfeit: Status.CRASHED,
    Move: Status.MOVED,
    Leave: Status.LOST,
}


def status_of(settlement: Settlement | Leave, outcome: Outcome, settled: Settled = Settled.OK) -> Status:
    """Return what `WorkerResult.status` says. `settled`: the backend's answer; a refusal is always `lost`."""
    if not settled:
        return Status.LOST
    match settlement, outcome:
        case Ack(), AlreadyDone():
            return Status.SKIPPED_IDEMPOTENT
        case Abandon(), Rejected():
            return Status.REJECTED
        case Leave(), Crashed() | NeverStarted() if settlement is not decide.LEASE_LOST:
            return Status.CRASHED
        case _:
            return _STATUS[type(settlement)]


SUCCEEDED: tuple[str, ...] = ("succeeded",)
LEASE_LOST: tuple[str, ...] = ("lease_lost",)
REAPED: tuple[str, ...] = ("reaped",)
REAPED_DEAD: tuple[str, ...] = ("reaped", "failed_permanently")


def counters_of(settlement: Settlement | Leave, outcome: Outcome, settled: Settled = Settled.OK) -> tuple[str, ...]:
    """Return what the delivery counts as, some of `outcome.OUTCOMES`, once the backend has answered `settled`."""
    if type(outcome) is Succeeded and type(settlement) is Ack and settled:
        return SUCCEEDED  # nearly all messages, once each
    match status_of(settlement, outcome, settled):
        case Status.REQUEUED:
            return ("failed", "requeued", *_timed_out(outcome))
        case Status.DEAD_LETTERED:
            return (*_attempt_failed(outcome), "failed_permanently", *_timed_out(outcome))
        case Status.MOVED:
            return (*(_attempt_failed(outcome) or ("crashed",)), "moved")
        case Status.REJECTED:
            return ("rejected_signature" if _is_about_signature(outcome) else "rejected_payload",)
        case other:
            return _PLAIN_COUNTERS.get(other, ())


_PLAIN_COUNTERS: dict[Status, tuple[str, ...]] = {
    Status.SKIPPED_IDEMPOTENT: ("skipped_idempotent",),
    Status.RELEASED: ("released",),
    Status.LOST: LEASE_LOST,
    Status.CRASHED: ("crashed",),
}


def counts_as_attempt(outcome: Outcome) -> bool:
    """Return whether the handler ran and is responsible for the failure."""
    return isinstance(outcome, Failed | RetryAsked | TimedOut | MemoryExceeded)


def _attempt_failed(outcome: Outcome) -> tuple[str, ...]:
    """Return nothing for a message whose handler never ran: that is not a failed attempt."""
    return ("failed",) if counts_as_attempt(outcome) else ()


def _timed_out(outcome: Outcome) -> tuple[str, ...]:
    return ("timed_out",) if isinstance(outcome, TimedOut) else ()


def _is_about_signature(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejected) and outcome.signature
