"""A fixed amount of CPU work: pure Python, no memory to speak of, the same in a handler and in a bare process."""

from __future__ import annotations

import time
from itertools import repeat

CALIBRATIONS = 15


_NEXT = [(place * 5 + 3) % 256 for place in range(256)]


def burn(loops: int) -> int:
    """Keep one core busy for `loops` turns; the result is of no use.

    Allocates nothing: how fast Python makes numbers depends on what else a process has made.
    """
    place = 0
    table = _NEXT
    for _ in repeat(None, loops):
        place = table[place]
    return place


def loops_for(seconds: float) -> int:
    """Return how many turns take `seconds` of an undisturbed core: by the quickest of some tries."""
    loops = 100_000
    quickest = min(_seconds(loops) for _ in range(CALIBRATIONS))
    return max(1, round(loops * seconds / quickest))


def _seconds(loops: int) -> float:
    begun = time.thread_time()
    burn(loops)
    return time.thread_time() - begun
