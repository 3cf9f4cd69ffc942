"""Values: what a scheduler did about a schedule at one of its instants, and the key that makes it once only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from jobpool.message.definition import rfc3339


class FiringStatus(StrEnum):
    """The result of one instant."""

    FIRED = "fired"
    """Enqueued, or run inline with success."""
    ALREADY = "already"
    """Another scheduler has fired it."""
    SKIPPED = "skipped"
    """It is not fired, and never will be: `why` says the reason."""
    MISSED = "missed"
    """Nobody was there in time, and the misfire policy makes up for it no more."""
    FAILED = "failed"
    """It was refused, or ran inline and failed. It is not tried again."""
    LATER = "later"
    """Nothing is decided: the broker did not answer, or what it depends on has no end yet. It is tried again."""


@dataclass(frozen=True, slots=True)
class Firing:
    """The result of a schedule at one instant.

    Attributes:
        name: Of the schedule.
        at: The instant that was scheduled, in UTC.
        status: Its result.
        lateness: Seconds from the instant to the firing.
        id: Of the message, when it was enqueued.
        why: The reason, when it was not fired.
        took: Seconds that it ran inline.
    """

    name: str
    at: datetime
    status: FiringStatus
    lateness: float = 0.0
    id: str | None = None
    why: str | None = None
    took: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; fields that are None are left out."""
        values = {
            "name": self.name,
            "at": rfc3339(self.at),
            "status": self.status.value,
            "lateness": round(self.lateness, 6),
            "id": self.id,
            "took": self.took,
            "why": self.why,
        }
        return {key: value for key, value in values.items() if value is not None}


def firing_key(name: str, at: datetime) -> str:
    """Return the key that makes a firing the same to all schedulers: the schedule's name, and the instant in UTC."""
    return f"{name} at {rfc3339(at)}"
