"""What a pool has done since it started: plain numbers, written to the scoreboard's header."""

from __future__ import annotations

from dataclasses import dataclass

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
