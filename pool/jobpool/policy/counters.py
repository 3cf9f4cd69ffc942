"""The count of a settlement, once the broker has answered: a worker's status, and counters. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jobpool.message.outcome import (
    AlreadyDone,
    Crashed,
    Failed,
    MemoryExceeded,
    NeverStarted,
    Outcome,
    Rejected,
    RetryAsked,
    Succeeded,
    TimedOut,
)
from jobpool.message.result import Status
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


SUCCEEDED: tuple[str, ...] = ("jobs_succeeded",)
LEASE_LOST: tuple[str, ...] = ("jobs_lease_lost",)


def counters_of(settlement: Settlement | Leave, outcome: Outcome, settled: Settled = Settled.OK) -> tuple[str, ...]:
    """The names of the counters to add, label `queue`, once the backend has answered `settled`.

    `jobs_fetched` is counted at the fetch and `jobs_reaped` by the reaper.
    """
    if type(outcome) is Succeeded and type(settlement) is Ack and settled:
        return SUCCEEDED  # nearly all messages, once each
    match status_of(settlement, outcome, settled):
        case Status.REQUEUED:
            return ("jobs_failed", "jobs_requeued", *_timed_out(outcome))
        case Status.DEAD_LETTERED:
            return (*_attempt_failed(outcome), "jobs_failed_permanently", *_timed_out(outcome))
        case Status.MOVED:
            return (*(_attempt_failed(outcome) or ("jobs_crashed",)), "jobs_moved")
        case Status.REJECTED:
            return ("jobs_rejected_signature" if _is_about_signature(outcome) else "jobs_rejected_payload",)
        case other:
            return _PLAIN_COUNTERS.get(other, ())


_PLAIN_COUNTERS: dict[Status, tuple[str, ...]] = {
    Status.SKIPPED_IDEMPOTENT: ("jobs_skipped_idempotent",),
    Status.RELEASED: ("jobs_released",),
    Status.LOST: LEASE_LOST,
    Status.CRASHED: ("jobs_crashed",),
}


def counts_as_attempt(outcome: Outcome) -> bool:
    """Return whether the handler ran and is responsible for the failure."""
    return isinstance(outcome, Failed | RetryAsked | TimedOut | MemoryExceeded)


def _attempt_failed(outcome: Outcome) -> tuple[str, ...]:
    """A dead letter whose handler never ran, or was cancelled, is no failed attempt."""
    return ("jobs_failed",) if counts_as_attempt(outcome) else ()


def _timed_out(outcome: Outcome) -> tuple[str, ...]:
    return ("jobs_timed_out",) if isinstance(outcome, TimedOut) else ()


def _is_about_signature(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejected) and outcome.signature


_FIELD = {
    "jobs_succeeded": "succeeded",
    "jobs_failed": "failed",
    "jobs_requeued": "requeued",
    "jobs_failed_permanently": "dead",
    "jobs_skipped_idempotent": "skipped",
    "jobs_rejected_signature": "rejected",
    "jobs_rejected_payload": "rejected",
    "jobs_timed_out": "timed_out",
    "jobs_crashed": "crashed",
    "jobs_released": "released",
    "jobs_lease_lost": "lost",
    "jobs_moved": "moved",
}


@dataclass(slots=True)
class Counters:
    """Settlements are counted when the backend has accepted them, not when they were sent."""

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

    def add(self, names: tuple[str, ...]) -> None:
        """Add 1 to each counter, by its metric name (`jobs_…`)."""
        for name in names:
            field = _FIELD[name]
            setattr(self, field, getattr(self, field) + 1)
