"""Is this pool well? Judged from its scoreboard alone, so the answer comes while the broker or the master hangs.

`examine` is the judgement: a header in, one `Check` a line out, no I/O. `look` reads the header for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.units import format_duration
from jobpool.ops.runtime_dir import PoolFile
from jobpool.telemetry.metrics.probes import BOOT_LOOP, LOOP_LIMIT, MISSED, seconds_since


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer: what was looked at, whether it is well, and the sentence for a person."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """The answer for one pool."""

    pool: PoolFile
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def examine(header: HeaderView, pool: PoolFile, now: float) -> list[Check]:
    """Return the checks of one pool. `now`: CLOCK_MONOTONIC seconds, as the times in the header."""
    return [
        _loop(header, pool, now),
        _children(header),
        _broker(header, now),
        _reaper(header, now),
        _boot(header),
    ]


def look(pool: PoolFile, now: float | None = None) -> Health:
    """Read the pool's scoreboard and examine it. Does not block."""
    try:
        with Scoreboard.open(pool.board) as board:
            header = board.header.read()
    except (OSError, ValueError) as error:
        return Health(pool, (Check("scoreboard", False, f"the scoreboard {pool.board} cannot be read: {error}"),))
    return Health(pool, tuple(examine(header, pool, time.monotonic() if now is None else now)))


def _loop(header: HeaderView, pool: PoolFile, now: float) -> Check:
    silent = seconds_since(header.loop_at, header, now)
    master, ago = f"the master (pid {pool.pid})", format_duration(silent)
    if silent > LOOP_LIMIT:
        return Check("loop", False, f"{master} has not turned its loop for {ago}")
    return Check("loop", True, f"{master} turned its loop {ago} ago")


def _children(header: HeaderView) -> Check:
    count = f"{header.ready} of {header.workers} children ready"
    if header.ready >= 1:
        worry = f"; {header.problem}" if header.problem else ""  # jobs run, but not all is well
        return Check("children", True, count + (", draining" if header.draining else "") + worry)
    return Check("children", False, count + (f": {header.problem}" if header.problem else ""))


def _broker(header: HeaderView, now: float) -> Check:
    silent = seconds_since(header.broker_ok_at, header, now)
    ago = format_duration(silent)
    if silent > MISSED * header.broker_interval:
        every = format_duration(header.broker_interval)
        return Check("broker", False, f"{header.backend} last answered {ago} ago; it is asked every {every}")
    return Check("broker", True, f"{header.backend} answered {ago} ago")


def _reaper(header: HeaderView, now: float) -> Check:
    silent = seconds_since(header.reaped_at, header, now)
    ago = format_duration(silent)
    if silent > MISSED * header.reap_interval:
        every = format_duration(header.reap_interval)
        return Check("reaper", False, f"the reaper last ran {ago} ago; it is due every {every}")
    return Check("reaper", True, f"the reaper ran {ago} ago")


def _boot(header: HeaderView) -> Check:
    if header.boot_failures >= BOOT_LOOP:
        why = f": {header.problem}" if header.problem else ""
        return Check("boot", False, f"{header.boot_failures} children in a row could not boot{why}")
    return Check("boot", True, "children boot")
