"""The result of a run: counts that must be 0 with their messages, figures, and everything needed to repeat it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jobpool_torture.ledger import Ledger
from jobpool_torture.message_history import ACCEPTED
from jobpool_torture.oracle import VIOLATIONS, Account

MEANINGS = {
    "LOST": "enqueued, and neither done nor kept by the broker; or dead, though it was not to die",
    "GHOST": "ran, and was never enqueued",
    "DOUBLE-SETTLE": "came to an end more than once",
    "RERUN": "came again after an accepted end, or while it was held",
    "ATT": "was delivered with a wrong count of failed attempts",
    "CR": "was delivered with a wrong count of crashes",
    "BLAMED": "was failed or killed in a process that another job had spoilt",
    "FENCE": "was delivered with a fence that did not grow",
    "KEY": "ran, or was enqueued, though its key was done or taken",
    "RESULT": "has no result though it was acked, or another run's",
    "CANCEL": "began after its cancel was answered",
    "BATCH": "a batch whose callback is missing, came twice or was told wrong counts",
    "POISON": "crashed whenever it ran, and ran too often",
    "LATE": "hung, and was ended far too late",
    "STUCK": "was not done when nothing became less any more",
    "DIED": "a pool that ended by itself",
    "STALLED": "a pool that kept a fork server which stood still, or waited for the reader of its log",
    "EXIT": "a pool that a stop did not end with status 0",
    "ORPHANS": "a process that was left behind",
    "FD": "a master with more open descriptors than before",
}
"""The counts that must be 0, in the order in which they are shown."""


EVEN_OF_COPIES = ("LOST", "GHOST")


@dataclass(slots=True)
class Tally:
    """Counts of events; `refused`: settlements that came too late, `unknown`: those to which no answer came."""

    enqueued: int = 0
    runs: int = 0
    done: int = 0
    failed: int = 0
    crashed: int = 0
    dead: int = 0
    refused: int = 0
    unknown: int = 0
    written: int = 0

    def follow(self, ledger: Ledger) -> Tally:
        """Count the lines that were added to the ledger since the last call; return itself."""
        for line in ledger.after(self.written):
            self.written += 1
            match line.event:
                case "enq":
                    self.enqueued += 1
                case "start":
                    self.runs += 1
                case "unknown":
                    self.unknown += 1
                case "reaped":
                    self.crashed += 1
                    self.dead += line.answer == "dead"
                case "settled" if line.answer in ACCEPTED:
                    self.done += line.verb == "ack"
                    self.failed += line.verb == "nack"
                    self.dead += line.verb == "abandon"
                case "settled":
                    self.refused += 1
        return self


@dataclass(slots=True)
class Result:
    """The findings of a run."""

    counts: dict[str, list[str]] = field(default_factory=dict)  # of every count that is not 0: ids, or sentences
    tally: Tally = field(default_factory=Tally)
    duplicates: int = 0  # jobs that ended twice, or (overlaps) ran beside themselves: allowed where leases were lost
    overlaps: int = 0
    excused: int = 0  # jobs whose counters were not judged, for the broker may have left a copy
    late: list[float] = field(default_factory=list)  # seconds from a timeout to its verdict, in pools not held up
    dead: dict[str, int] = field(default_factory=dict)
    tracked: dict[str, int] = field(default_factory=dict)  # grounds for RESULT, CANCEL and BATCH → how many
    descriptors: dict[str, dict[str, int]] = field(default_factory=dict)  # by pool and kind: how many more, or < 0
    struck: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    left_out: dict[str, str] = field(default_factory=dict)  # kinds of fault that this run had none of → why
    problems: list[str] = field(default_factory=list)  # failures of the torture itself, not of the pools
    seconds: dict[str, float] = field(default_factory=dict)
    left: int = 0
    planned: int = 0
    interrupted: bool = False  # a person ended it before its time; jobs left then are not counted as stuck

    def add(self, count: str, found: Iterable[str]) -> None:
        """Add to a count of `MEANINGS`; nothing where nothing was found."""
        if both := {*self.counts.get(count, ()), *found}:
            self.counts[count] = sorted(both)

    def take(self, account: Account, copied: Collection[str] = ()) -> None:
        """Take the oracle's counts. `copied`: ids that are not judged by their counters and numbers either."""
        for count in VIOLATIONS:
            excused = () if count in EVEN_OF_COPIES else copied
            self.add(count, [f"{ident}: {why}" for ident, why in account.found[count].items() if ident not in excused])
        self.duplicates, self.overlaps = len(account["DUP"]), len(account["OVERLAP"])
        self.excused = len(account.excused.union(copied))

    @property
    def doubt(self) -> str:
        """Why the run has not shown what it was to show, even where all counts are 0; "" = there is no such reason."""
        if self.problems:
            return self.problems[0]
        if self.planned and not self.struck and not self.interrupted:
            return f"none of the {self.planned} faults of the schedule found anything to strike"
        return ""

    @property
    def is_clean(self) -> bool:
        return not self.counts and not self.doubt

    @property
    def violations(self) -> int:
        return sum(map(len, self.counts.values()))

    def to_dict(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "doubt": self.doubt,
            "counts": {count: len(self.counts.get(count, ())) for count in MEANINGS},
            "violations": self.counts,
            "jobs": asdict(self.tally),
            **{name: getattr(self, name) for name in ("duplicates", "overlaps", "excused")},
            "late": quantiles(self.late),
            **{name: getattr(self, name) for name in ("dead", "tracked", "descriptors")},
            "faults": {"struck": self.struck.total(), "missed": self.missed, "by_kind": self.struck},
            **{name: getattr(self, name) for name in ("left_out", "problems")},
            "seconds": {phase: round(seconds, 3) for phase, seconds in self.seconds.items()},
            **{name: getattr(self, name) for name in ("left", "interrupted")},
        }


SHARES = {"p50": 0.50, "p99": 0.99, "max": 1.0}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return how many, and of them the middle one, the 99th of a hundred and the highest, rounded to milliseconds."""
    if not values:
        return {"n": 0}
    ranked = sorted(values)
    found = {name: ranked[math.ceil(share * len(ranked)) - 1] for name, share in SHARES.items()}
    return {"n": len(ranked), **{name: round(value, 3) for name, value in found.items()}}
