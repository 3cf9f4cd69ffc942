"""What the demo expects to see, and what it saw: pure functions, so that a test can show them a bad day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stdlib_reports.shelf import Entry

SLACK = 15.0
"""Seconds that a busy machine may add to a kill before the demo calls it late."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, as far as the demo looks at it. `died_at` is Unix time in seconds."""

    id: str
    handler: str
    reason: str
    how: str
    error: str
    died_at: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything there is to know when the pool has ended.

    Attributes:
        reports: The ids of the ordinary jobs.
        hang: The id of the job that loops in C.
        crash: The id of the one that segfaults.
        flaky: The id of the one that fails twice.
        pages: How many reports have their page.
        pending: Messages that are neither acked nor dead.
        dead: The dead letters.
        ledger: What the handlers wrote when they began.
        allowed: Seconds that `hang` may run: its timeout and the grace.
        crashes: How often `crash` may be started: the pool's `max_crashes`, and once more.
        pool_exit: Exit status of the pool.
    """

    reports: tuple[str, ...]
    hang: str
    crash: str
    flaky: str
    pages: int
    pending: int
    dead: tuple[DeadLetter, ...]
    ledger: tuple[Entry, ...]
    allowed: float
    crashes: int
    pool_exit: int

    @property
    def enqueued(self) -> int:
        return len(self.reports) + 3

    @property
    def acked(self) -> int:
        return self.enqueued - len(self.dead) - self.pending

    @property
    def lost(self) -> int:
        """Reports that are neither on the shelf, nor dead, nor still in the queue."""
        ordinary = set(self.reports)
        return max(0, len(ordinary) - self.pages - self.pending - sum(letter.id in ordinary for letter in self.dead))

    @property
    def retried(self) -> int:
        """Runs that followed a failed attempt."""
        return len({(entry.job, entry.attempt) for entry in self.ledger if entry.attempt > 1})

    @property
    def hung_for(self) -> float | None:
        """Seconds from the start of `hang` to its dead letter."""
        letter, starts = self.letter(self.hang), self.starts(self.hang)
        return letter.died_at - starts[0].at if letter and starts else None

    def letter(self, job: str) -> DeadLetter | None:
        return next((letter for letter in self.dead if letter.id == job), None)

    def starts(self, job: str) -> list[Entry]:
        return [entry for entry in self.ledger if entry.job == job]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the summary."""

    what: str
    count: int
    why: str = ""
    inner: tuple[str, ...] = ()


def differences(picture: Picture) -> list[str]:
    """What is not as it should be; empty when all is well."""
    return [*_pool(picture), *_hang(picture), *_crash(picture), *_flaky(picture)]


def lines(picture: Picture) -> list[Line]:
    """The summary, a line a fate."""
    reasons = Counter(letter.reason for letter in picture.dead)
    letters = tuple(f"{letter.handler} {letter.id}: {letter.reason}" for letter in picture.dead)
    return [
        Line("acked", picture.acked),
        Line("retried", picture.retried, _why_retried(picture)),
        Line("timed out", reasons["timeout"], _why_timed_out(picture)),
        Line("crashed", len(picture.starts(picture.crash)), _why_crashed(picture)),
        Line("dead letters", len(picture.dead), "kept until a person decides", letters),
        Line("lost", picture.lost),
    ]


def _pool(picture: Picture) -> Iterator[str]:
    if picture.pool_exit != 0:
        yield f"the pool exited with status {picture.pool_exit}; it should be 0"
    if picture.pending:
        yield f"{picture.pending} jobs are still in the queue; it should be empty"
    if picture.pages != len(picture.reports):
        yield f"{picture.pages} of {len(picture.reports)} reports have their page; all of them should"
    for letter in picture.dead:
        if letter.id in picture.reports:
            yield f"report {letter.id} is a dead letter, {letter.reason}: {_last_line(letter.error)}"


def _hang(picture: Picture) -> Iterator[str]:
    letter, hung_for = picture.letter(picture.hang), picture.hung_for
    if letter is None or hung_for is None:
        yield "the job that hangs in C is not a dead letter; it should have timed out"
        return
    if letter.reason != "timeout":
        yield f"the job that hangs in C died of {letter.reason!r}; it should be 'timeout'"
    if "in hang" not in letter.error:
        yield "the job that hangs in C is a dead letter without its stack; it should name the line"
    if hung_for > picture.allowed + SLACK:
        yield f"the job that hangs in C was stopped after {hung_for:.1f} s; it should be {picture.allowed:.1f} s"


def _crash(picture: Picture) -> Iterator[str]:
    letter, starts = picture.letter(picture.crash), picture.starts(picture.crash)
    if letter is None or letter.reason != "crash-limit":
        yield f"the job that segfaults is {letter.reason if letter else 'no dead letter'}; it should be 'crash-limit'"
    if len(starts) != picture.crashes:
        yield f"the job that segfaults was started {len(starts)} times; it should be {picture.crashes}"


def _flaky(picture: Picture) -> Iterator[str]:
    attempts = [entry.attempt for entry in picture.starts(picture.flaky)]
    if attempts != [1, 2, 3] or picture.letter(picture.flaky):
        yield f"the job that fails twice ran its attempts {attempts}; it should be [1, 2, 3], and an ack"


def _why_retried(picture: Picture) -> str:
    attempts = [str(entry.attempt) for entry in picture.starts(picture.flaky)]
    return f"flaky ran its attempts {', '.join(attempts)}" if attempts else ""


def _why_timed_out(picture: Picture) -> str:
    letter, hung_for = picture.letter(picture.hang), picture.hung_for
    if letter is None or hung_for is None:
        return ""
    return f"hang looped in C; killed after {hung_for:.2f} s ({picture.allowed:.1f} s allowed)"


def _why_crashed(picture: Picture) -> str:
    letter, starts = picture.letter(picture.crash), picture.starts(picture.crash)
    if letter is None:
        return ""
    processes = len({entry.pid for entry in starts})
    how = letter.how or "ended somehow"
    return f"crash took {processes} processes with it, each {how}; then its crash budget was spent"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no error text"])[-1]
