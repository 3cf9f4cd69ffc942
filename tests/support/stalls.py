"""How long the machine has kept a program from running: what bounds of seconds are widened by on a busy one."""

from __future__ import annotations

import threading
import time
from typing import Self

TICK = 0.01
LATE = 0.005
"""Seconds: a tick that comes so much too late was kept waiting."""


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
