"""What has happened in a queue since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Counts; `lost_locks` ended by themselves."""

    enqueued: int = 0
    delivered: int = 0
    renewed: int = 0
    completed: int = 0
    abandoned: int = 0
    released: int = 0
    dead_lettered: int = 0
    lost_locks: int = 0
