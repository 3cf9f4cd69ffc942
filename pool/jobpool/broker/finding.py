"""The finding of a check: one value for `jobpool doctor`, and for the cautions in a starting pool's log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding.

    A problem loses jobs or runs them twice in everyday events (a restart, a failover, a full memory), or stops the pool
    from working. A warning costs speed, or loses the last moments when a machine dies, which some accept.
    """

    OK = "ok"
    NOTE = "note"
    """Something could not be looked at, or is worth knowing; nothing is wrong as far as is known."""
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check, in parts of a sentence.

    Attributes:
        check: Its name, lower-case words with dots and dashes: `redis.eviction`.
        level: How bad it is.
        found: The fact.
        why: The consequence; "" when all is well.
        mend: The remedy; every warning and problem has one.
    """

    check: str
    level: Level
    found: str
    why: str = ""
    mend: str = ""

    def __str__(self) -> str:
        """Return `found: why; mend`, as far as there is any."""
        told = f"{self.found}: {self.why}" if self.why else self.found
        return f"{told}; {self.mend}" if self.mend else told

    @property
    def is_bad(self) -> bool:
        """True if it deserves a line in a log."""
        return self.level in (Level.WARNING, Level.PROBLEM)


def cautions_of(findings: Iterable[Finding]) -> list[str]:
    """Return the sentences of those that are bad."""
    return [str(finding) for finding in findings if finding.is_bad]
