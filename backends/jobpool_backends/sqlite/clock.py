"""The time in whole microseconds, and the boot.

A lease's deadline is kept twice. Within one boot CLOCK_BOOTTIME decides, because nobody can set it; after a reboot it
has started again, and the wall clock is all there is.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jobpool.clock import Clock
from jobpool_backends.shared import micros

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = "/proc/self/ns/time"


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading: `wall` Unix time, `boottime` CLOCK_BOOTTIME of the boot named `boot`."""

    wall: int
    boottime: int
    boot: int

    def is_past(self, boot: int, deadline: int, deadline_wall: int) -> bool:
        """Return whether a lease with this deadline has ended; at the deadline it has."""
        return deadline <= self.boottime if boot == self.boot else deadline_wall <= self.wall

    def arguments(self, queue: str) -> dict[str, str | int]:
        """Return the parameters of statements that find what has ended in a queue."""
        return {"queue": queue, "boot": self.boot, "boottime": self.boottime, "wall": self.wall}


def read_moment(clock: Clock, boot: int) -> Moment:
    return Moment(micros(clock.wall()), micros(clock.boot()), boot)


@cache
def this_boot() -> int:
    """Return a positive number for this boot of this machine, and for this time namespace, which may shift
    CLOCK_BOOTTIME.
    """
    try:
        name = _BOOT_ID.read_text("utf-8").strip()
    except OSError:
        name = "unknown"
    try:
        namespace = os.readlink(_TIME_NAMESPACE)
    except OSError:  # kernels before 5.6 have no time namespaces
        namespace = ""
    return int.from_bytes(hashlib.sha256(f"{name} {namespace}".encode()).digest()[:6], "big")
