"""A clock for the tests of what a set wall clock, and a reboot, do to a file of SQLite."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SplitClock:
    """A wall clock that can be set, and a boot clock that cannot."""

    wall_time: float = 1_800_000_000.0
    boot_time: float = 500.0

    def mono(self) -> float:
        return self.boot_time

    def boot(self) -> float:
        return self.boot_time

    def wall(self) -> float:
        return self.wall_time
