"""Detectors of standstill: of a drain in which nothing becomes less, a fork server, a log that is not read.

A pool must replace a stopped fork server, and go on beside such a log. Effects of other faults are not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from jobpool.broker.values import QueueStats
from jobpool.telemetry.metrics.pages import LOOP_LIMIT
from jobpool_torture import processes
from jobpool_torture.fleet import Pool
from jobpool_torture.judge import Window
from jobpool_torture.processes import Stops

FROZEN_LIMIT_S = 60.0
"""Time within which a pool must have ended a fork server that stands still: far more than it waits itself."""


class DrainStall:
    """The detector of one drain, in which no job arrives but follow-ups, and in which nothing becomes less.

    Progress means that fewer jobs are left than ever before. So a drain of any length is waited for, and jobs that
    circle forever are found out.

    Args:
        seconds: For which nothing may get less, > 0.
        now: When the drain begins, in seconds of any clock.
    """

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._moved = now
        self._least: int | None = None
        self._lines = 0

    def is_over(self, now: float, stats: QueueStats | None, lines: int) -> bool:
        """Return whether it is to be given up.

        No answer (`stats`: None) does not count as progress. Lines of the ledger do while the queue is so long that the
        broker does not count it to its end.
        """
        if stats is not None and self._is_progress(stats, lines):
            self._moved = now
        self._lines = lines
        return now - self._moved > self._seconds

    def _is_progress(self, stats: QueueStats, lines: int) -> bool:
        if stats.cap is not None and stats.pending >= stats.cap:
            return lines > self._lines
        if self._least is not None and stats.pending >= self._least:
            return False
        self._least = stats.pending
        return True


@dataclass(slots=True)
class Frozen:
    """A fork server that stands still."""

    fault: int
    pool: Pool
    master: int
    pid: int
    begun: float  # CLOCK_MONOTONIC


class PoolStalls:
    """The watch over pools that are held up by things that must not hold them. For one thread.

    `is_held` tells if another fault holds that pool up. `windows`: takes each time that a fork server stood still.
    """

    def __init__(self, stops: Stops, is_held: Callable[[Pool], bool], windows: list[Window]) -> None:
        self._stops = stops
        self._is_held = is_held
        self._windows = windows
        self._frozen: list[Frozen] = []
        self._held_at: dict[int, float] = {}
        self.found: list[str] = []  # violations: a sentence each

    def freeze(self, fault: int, pool: Pool, pid: int) -> None:
        self._frozen.append(Frozen(fault, pool, pool.pid, pid, time.monotonic()))

    @property
    def are_frozen(self) -> bool:
        return bool(self._frozen)

    def has(self, pid: int) -> bool:
        return any(frozen.pid == pid for frozen in self._frozen)

    def look(self, pools: list[Pool], *, give_up: bool = False) -> list[str]:
        """Note fork servers that were, or should have been, replaced; `give_up`: let all go. A sentence for each."""
        now = time.monotonic()
        self._held_at |= {pool.number: now for pool in pools if self._is_held(pool)}
        told = []
        for frozen in list(self._frozen):
            if said := self._look_at(frozen, now) or ("let go" if give_up else ""):
                self._frozen.remove(frozen)
                self._stops.go(frozen.fault)
                self._windows.append(Window(frozen.pool.name, "forkserver.freeze", frozen.begun, now))
                told.append(f"{frozen.pool.name}: the fork server {frozen.pid} that stood still was {said}")
        return told

    def _look_at(self, frozen: Frozen, now: float) -> str:
        """Tell what became of it; "" = it stands."""
        if not processes.is_alive(frozen.pid):
            return f"ended after {now - frozen.begun:.1f} s"
        if frozen.pool.pid != frozen.master:
            return "let go, for its master has ended"
        # Its pool could see to it since then.
        if now - max(frozen.begun, self._held_at.get(frozen.pool.number, 0.0)) < FROZEN_LIMIT_S:
            return ""
        self.found.append(
            f"{frozen.pool.name}: its fork server {frozen.pid} stood still for {now - frozen.begun:.0f} s"
        )
        return "not ended by its pool, and let go"

    def judge_log(self, pool: Pool, seconds: float) -> None:
        """Look whether that pool's master has gone on while its log was not read, for so long."""
        header = pool.header()
        now = time.monotonic()
        calm = now - self._held_at.get(pool.number, 0.0)
        if header is None or not header.loop_at or self._is_held(pool) or calm < LOOP_LIMIT:
            return
        silent = now - header.loop_at
        if silent > LOOP_LIMIT:
            self.found.append(
                f"{pool.name}: its master has stood still for {silent:.1f} s, of {seconds:g} s without a reader"
            )
