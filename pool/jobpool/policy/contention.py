"""How long a message waits whose key, lock or place is held elsewhere: full jitter, 1 s doubling to 30 s."""

from __future__ import annotations

import random

FIRST_CONTENTION_DELAY_S = 1.0
MAX_CONTENTION_DELAY_S = 30.0
"""Seconds: the upper edges of the first delay and of every later one (SEMANTICS §6)."""

REMEMBERED_MESSAGES = 10_000
"""Messages whose contentions are counted; the one first met is forgotten first."""


def contention_delay(times: int, longest: float = MAX_CONTENTION_DELAY_S) -> float:
    """Seconds to wait after the `times`-th contention in a row (1-based): uniform from 0 to the doubled edge.

    Args:
        times: 1 or more; no overflow however many.
        longest: Seconds, > 0: the edge is never above it.
    """
    return random.uniform(0.0, min(longest, FIRST_CONTENTION_DELAY_S * 2.0 ** min(times - 1, 60)))


class Contentions:
    """How often messages were met contended since they last got what they asked for. For one thread."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def met(self, ident: str) -> int:
        """Count one more; how many that makes."""
        times = self._times.pop(ident, 0) + 1
        self._times[ident] = times
        if len(self._times) > REMEMBERED_MESSAGES:
            del self._times[next(iter(self._times))]
        return times

    def forget(self, ident: str) -> None:
        """The message got what it asked for, or is done."""
        self._times.pop(ident, None)
