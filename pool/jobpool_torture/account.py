"""The oracle's counts of a ledger: ids, by their fault, and a sentence for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VIOLATIONS = {
    "LOST": "lost",
    "GHOST": "ghosts",
    "DOUBLE-SETTLE": "double_settles",
    "RERUN": "reruns",
    "ATT": "wrong_attempts",
    "CR": "wrong_crashes",
    "FENCE": "fences",
}
"""The counts that must be 0, by the names that the documents use → attributes of an `Account`."""

MULTIPLE = {"DUP": "duplicates", "OVERLAP": "overlaps"}
"""Counts of what may be, where leases were lost."""


@dataclass(slots=True)
class Account:
    """The counts: ids, so that a failure names them.

    Attributes:
        lost: Enqueued, and neither acked nor kept; or acked though their handler had not ended; or dead, and gone; or
            dead, and given up by nobody.
        ghosts: Delivered, run or kept, and never enqueued.
        double_settles: Ended more often than once, or settled by one whose lease was over.
        reruns: Delivered again, or kept alive, after an accepted end; or delivered while another delivery held it.
        fences: Delivered or begun under a number that had been another's, or that was not above the earlier ones.
        wrong_attempts: A number of failures other than they had.
        wrong_crashes: A number of crashes other than their deliveries without a verdict.
        duplicates: Ended more than once. No fault by itself.
        overlaps: Ran on after a later delivery had begun. No fault by itself.
        crashes: Per id that has run, as its last run was told.
        excused: Not judged by their counters and numbers, because a broker that copies may have left two of them.
        messages: How many there were.
        reasons: By attribute and id, the fault, or why it was excused: half a sentence.
    """

    lost: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    double_settles: set[str] = field(default_factory=set)
    reruns: set[str] = field(default_factory=set)
    fences: set[str] = field(default_factory=set)
    wrong_attempts: set[str] = field(default_factory=set)
    wrong_crashes: set[str] = field(default_factory=set)
    duplicates: set[str] = field(default_factory=set)
    overlaps: set[str] = field(default_factory=set)
    crashes: dict[str, int] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    messages: int = 0
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)

    def note(self, attribute: str, ident: str, reason: str) -> None:
        """Count a message in."""
        getattr(self, attribute).add(ident)
        self.reasons[attribute, ident] = reason

    def violations(self) -> dict[str, dict[str, str]]:
        """Return the counts that must be 0, all of them: of each its ids → why."""
        return self._told(VIOLATIONS)

    def _told(self, counts: Mapping[str, str]) -> dict[str, dict[str, str]]:
        return {
            name: {ident: self.reasons[attribute, ident] for ident in sorted(getattr(self, attribute))}
            for name, attribute in counts.items()
        }

    @property
    def is_clean(self) -> bool:
        """True if all of them are."""
        return not any(self.violations().values())

    def assert_clean(self) -> None:
        """Raise `AssertionError`, with the first ids and what is wrong with them, unless it is clean."""
        self._assert_none(VIOLATIONS)

    def assert_once_each(self) -> None:
        """Assert as `assert_clean`, and that no message ended twice or ran beside itself."""
        self._assert_none(VIOLATIONS | MULTIPLE)

    def _assert_none(self, counts: Mapping[str, str]) -> None:
        found = {name: list(reasons.items())[:5] for name, reasons in self._told(counts).items() if reasons}
        if found:
            raise AssertionError(str(found))
