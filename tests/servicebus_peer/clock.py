"""The peer's clock, which a test turns instead of waiting."""

from __future__ import annotations

import time


class Clock:
    """Seconds, on two faces that move together unless the wall clock is set.

    Args:
        standing: Unix time of a clock that moves only when it is turned; None = the machine's time goes on.
    """

    def __init__(self, standing: float | None = None) -> None:
        self.standing = standing is not None
        self._wall = standing or 0.0
        self._monotonic = 0.0

    def monotonic(self) -> float:
        """By which locks end."""
        return self._monotonic if self.standing else self._monotonic + time.monotonic()

    def wall(self) -> float:
        """Unix time, by which schedules end, and which messages are stamped with."""
        return self._wall if self.standing else self._wall + time.time()

    def turn(self, seconds: float) -> None:
        """Move both faces `seconds` (>= 0) ahead."""
        self._monotonic += seconds
        self.set_wall(seconds)

    def set_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock, `seconds` on, or back below 0."""
        self._wall = round(self._wall + seconds, 6)
