"""How long the machine has kept a program from running: what bounds of seconds are widened by on a busy one."""

from __future__ import annotations

import threading
import time
from typing import Self

TICK = 0.01
LATE = 0.02
"""Seconds: a tick that comes so much too late was kept waiting by the machine.

Not less, because a thread waits up to some 10 ms for a main thread that is busy in Python, which is the test itself:
measured on 2 cores, 5 ms would call 0.35 of every second the machine's when it is idle, and 0.56 beside eight programs
that are always busy. 20 ms make 0.0 and 0.1 of it, and still see pauses of tenths of a second.
"""

PROCESSES = 3
"""A program waits for others in a row, such as a server and a child, and each may have been kept waiting as long."""


class Stalls:
    """Counts, between `__enter__` and `__exit__`, the seconds for which a thread that wanted to run could not.

    Attributes:
        seconds: So far, all such waits together.
        longest: The longest of them.
        allowance: How much later than on an idle machine a thing may have happened.
    """

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0
        self._looked_at = time.monotonic()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._looked_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def allowance(self) -> float:
        return PROCESSES * self.seconds

    def look(self) -> None:
        """Count the wait that has not ended, if there is one."""
        with self._lock:
            now = time.monotonic()
            late = now - self._looked_at - TICK
            self.seconds += late if late > LATE else 0.0
            self.longest = max(self.longest, late)
            self._looked_at = now

    def _tick(self) -> None:
        while not self._end.wait(TICK):
            self.look()
        self.look()


class Stopwatch:
    """The seconds since it was made, and those of them that the machine may have kept from what is measured.

    Where a test starts one in place of `time.monotonic()`, its bound holds on a machine that stands still for a while.
    Its thread ends when nobody has it any more.

    Attributes:
        began: When it was made, in CLOCK_MONOTONIC seconds.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._stalls = Stalls().__enter__()

    def __del__(self) -> None:
        self._stalls.__exit__()

    def elapsed(self) -> float:
        """Return all seconds until now."""
        return time.monotonic() - self.began

    def stalled(self) -> float:
        """Return how much later than on an idle machine a thing may have happened by now."""
        self._stalls.look()
        return self._stalls.allowance

    def seconds(self) -> float:
        """Return the seconds until now that an idle machine would have taken as well, or fewer."""
        elapsed = self.elapsed()
        return elapsed - self.stalled()
