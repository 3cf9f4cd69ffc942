"""Clocks, passed in wherever time matters, so that a test can turn one.

Three readings, never mixed up:

* `mono` (CLOCK_MONOTONIC): how long a job runs. It stands still in suspend, as the kernel's interval timer does.
* `boot` (CLOCK_BOOTTIME): when a lease ends. It goes on in suspend, as the broker's clock does. Elsewhere than on
  Linux it is CLOCK_MONOTONIC, which goes on in suspend on macOS, or the clock of `time.monotonic`.
* `wall` (Unix time, UTC): what is stored and shown.
"""

from __future__ import annotations

import time
from typing import Protocol

ONE_SIGNAL_S = 0.25  # the same stop signal again counts once: `timeout` sends it to its child, and then to the group

_BOOT = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class Clock(Protocol):
    """Readings in seconds as float. None of them blocks."""

    def mono(self) -> float: ...

    def boot(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's own clocks."""

    mono = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def boot(self) -> float:
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


class ManualClock:
    """A clock that only moves when it is told to. All three readings move together, unless the wall clock is set."""

    def __init__(self, wall: float = 1_800_000_000.0, boot: float = 1_000.0) -> None:
        self._wall = wall
        self._boot = boot

    def boot(self) -> float:
        return self._boot

    mono = boot

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move `seconds` (>= 0) forward.

        The readings are kept to the microsecond, the resolution of stored times, so that a test can land
        exactly on a deadline.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not run backwards: {seconds!r}")
        self._wall = round(self._wall + seconds, 6)
        self._boot = round(self._boot + seconds, 6)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock, `seconds` on (or back, below 0); the other readings stay."""
        self._wall = round(self._wall + seconds, 6)
