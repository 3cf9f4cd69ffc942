"""The ledger that handlers write, and the oracle that counts it: LOST, GHOST, ATT, FENCE, DUP, OVERLAP."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One event of one delivery. `crashes`, `attempt`: as the handler was told.

    `at`: CLOCK_MONOTONIC seconds; `wall`: Unix time.
    """

    event: str
    id: str
    fence: int
    pid: int
    at: float
    wall: float
    attempt: int
    crashes: int
    tag: str = ""


class Ledger:
    """The file; its lines are only ever added to, so each is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[Line] = []
        self._read = 0

    def read(self) -> list[Line]:
        """All whole lines so far, in the order of the writes."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._lines += [Line(**json.loads(line)) for line in whole.splitlines()]
        self._read += len(whole)
        return list(self._lines)


@dataclass(slots=True)
class Account:
    """What the oracle counted; ids, so that a failure names them.

    Attributes:
        lost: Enqueued, and neither ended nor kept by the backend.
        ghosts: Ran and were never enqueued.
        wrong_attempts: Were told another number of failures than they had.
        fences: Were delivered with a fence that did not grow.
        duplicates: Ended more than once.
        overlaps: Ran twice at the same time.
        uncharged: Were cut short more often than their crashes say.
        crashes: Per id, as its last delivery was told.
    """

    lost: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    wrong_attempts: set[str] = field(default_factory=set)
    fences: set[str] = field(default_factory=set)
    duplicates: set[str] = field(default_factory=set)
    overlaps: set[str] = field(default_factory=set)
    uncharged: set[str] = field(default_factory=set)
    crashes: dict[str, int] = field(default_factory=dict)

    def assert_clean(self) -> None:
        """Nothing lost, nothing run that was not enqueued, no counter wrong, every fence growing."""
        wrong = {
            "LOST": self.lost,
            "GHOST": self.ghosts,
            "ATT": self.wrong_attempts,
            "FENCE": self.fences,
            "CR": self.uncharged,
        }
        found = {name: sorted(ids)[:5] for name, ids in wrong.items() if ids}
        assert not found, found

    def assert_once_each(self) -> None:
        """As `assert_clean`, and no message ended twice or ran beside itself."""
        self.assert_clean()
        found = {"DUP": sorted(self.duplicates)[:5], "OVERLAP": sorted(self.overlaps)[:5]}
        assert not any(found.values()), found


def count(lines: Iterable[Line], enqueued: Collection[str], kept: Collection[str]) -> Account:
    """Count. `kept`: ids that the backend still has, live or dead."""
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[line.id].append(line)
    account = Account()
    for ident in enqueued:
        if ident not in kept and not any(line.event == "end" for line in by_id[ident]):
            account.lost.add(ident)
    account.ghosts = set(by_id) - set(enqueued)
    for ident, story in by_id.items():
        _count_one(ident, story, account)
    return account


def _count_one(ident: str, story: list[Line], account: Account) -> None:
    starts = [line for line in story if line.event == "start"]
    ends = {line.fence for line in story if line.event in ("end", "fail")}
    fences = [line.fence for line in starts]
    if fences != sorted(set(fences)):
        account.fences.add(ident)
    if sum(line.event == "end" for line in story) > 1:
        account.duplicates.add(ident)
    if _overlap(story):
        account.overlaps.add(ident)
    if starts:
        account.crashes[ident] = starts[-1].crashes
        cut_short = sum(fence not in ends for fence in fences[:-1])
        if cut_short > starts[-1].crashes:
            account.uncharged.add(ident)
    for start in starts:
        failures = sum(line.event == "fail" and line.fence < start.fence for line in story)
        if start.attempt != failures + 1:
            account.wrong_attempts.add(ident)


def _overlap(story: list[Line]) -> bool:
    """Whether a delivery wrote anything after a later one had begun."""
    begun = 0
    for line in story:
        if line.event == "start":
            begun = max(begun, line.fence)
        elif line.fence < begun:
            return True
    return False
