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


class Stalls:
    """Counts, between `__enter__` and `__exit__`, the seconds for which a thread that wanted to run could not.

    Attributes:
        seconds: So far, all such waits together.
        longest: The longest of them.
    """

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _tick(self) -> None:
        last = time.monotonic()
        while not self._end.wait(TICK):
            now = time.monotonic()
            late = now - last - TICK
            self.seconds += late if late > LATE else 0.0
            self.longest = max(self.longest, late)
            last = now
