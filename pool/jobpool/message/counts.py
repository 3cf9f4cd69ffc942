"""The counters of a pool. Each is declared here, once: scoreboard, log and metrics take theirs from this table."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


def _counter(*outcomes: str) -> int:
    return field(default=0, metadata={"outcomes": outcomes})


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts since the start of a pool; settlements are counted when the broker has accepted them.

    Each is the sum of some values of the label `outcome` of `jobpool_jobs_total`, which are also the names of
    `QueueWorker.counters`, less `jobs_`. `fetched` is a metric of its own.
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


SUMS: dict[str, tuple[str, ...]] = {each.name: each.metadata["outcomes"] for each in fields(Counts)}
"""Counter → the outcomes that it sums up."""

OUTCOMES: tuple[str, ...] = tuple(outcome for outcomes in SUMS.values() for outcome in outcomes)
"""All values of the label `outcome`."""
