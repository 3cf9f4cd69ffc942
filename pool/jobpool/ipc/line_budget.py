"""The bound on lines for the log that one process may send: a burst, and after it a steady rate (a token bucket)."""

from __future__ import annotations

from time import monotonic

SAID_AT_ONCE = 200  # lines that a child may send in a burst
SAID_PER_S = 50.0  # lines that it may send a second after that


class LineBudget:
    """A count of the lines that may still go, which time fills again. Takes no lock."""

    def __init__(self) -> None:
        self._left = float(SAID_AT_ONCE)
        self._since = monotonic()

    def left(self) -> float:
        """Return how many lines may go now, with the part of the next one that has come already."""
        now = monotonic()
        self._left = min(SAID_AT_ONCE, self._left + (now - self._since) * SAID_PER_S)
        self._since = now
        return self._left

    def spend(self, lines: int) -> float:
        """Count lines that go, at most `left()`; return what is left."""
        self._left -= lines
        return self._left
