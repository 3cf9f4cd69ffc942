"""The finding of a check: one value for `jobpool doctor`, and for the cautions in a starting pool's log."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """The severity of a finding.

    A note: something could not be looked at, or is worth knowing. A warning: it costs speed, or loses the last moments
    when a machine dies, which some accept. A problem: it loses jobs or runs them twice in everyday events (a restart, a
    failover, a full memory), or stops the pool from working.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """The answer of one check, in parts of a sentence."""

    check: str  # its name, lower-case words with dots and dashes: `redis.eviction`
    level: Level
    found: str  # the fact
    why: str = ""  # the consequence; "" when all is well
    mend: str = ""  # the remedy; every warning and problem has one

    def __str__(self) -> str:
        told = f"{self.found}: {self.why}" if self.why else self.found
        return f"{told}; {self.mend}" if self.mend else told

    @property
    def is_bad(self) -> bool:
        return self.level in (Level.WARNING, Level.PROBLEM)


def cautions_of(findings: Iterable[Finding]) -> list[str]:
    """Return the sentences of those that are bad: these deserve a line in a log."""
    return [str(finding) for finding in findings if finding.is_bad]
