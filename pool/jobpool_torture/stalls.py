"""Pools held up by something that must not hold them: a stopped fork server, a log that nobody reads.

A pool must replace such a fork server, and go on beside such a log. Effects of other faults are not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from jobpool.telemetry.metrics.probes import LOOP_LIMIT
from jobpool_torture import processes
from jobpool_torture.pool import Pool
from jobpool_torture.stops import Stops

FROZEN_LIMIT_S = 60.0
"""Seconds within which a pool must have ended a fork server that stands still: far more than it waits itself."""


@dataclass(slots=True)
class Frozen:
    """A fork server that stands still. `since`: from when on its pool could have seen to it (CLOCK_MONOTONIC)."""

    fault: int
    pool: Pool
    master: int
    pid: int
    begun: float
    since: float


class PoolStalls:
    """The watch over them. For one thread.

    Args:
        stops: By which fork servers were stopped.
        is_held: Tells if another fault holds that pool up.

    Attributes:
        found: Violations: a sentence each.
        moments: Pool, begin and end (CLOCK_MONOTONIC) of each time that a fork server stood still.
    """

    def __init__(self, stops: Stops, is_held: Callable[[Pool], bool]) -> None:
        self._stops = stops
        self._is_held = is_held
        self._frozen: list[Frozen] = []
        self._held_at: dict[int, float] = {}
        self.found: list[str] = []
        self.moments: list[tuple[str, float, float]] = []

    def freeze(self, fault: int, pool: Pool, pid: int) -> None:
        """Record that this fork server of the pool stands still from now on."""
        now = time.monotonic()
        self._frozen.append(Frozen(fault, pool, pool.pid, pid, now, now))

    @property
    def are_frozen(self) -> bool:
        return bool(self._frozen)

    def has(self, pid: int) -> bool:
        """Return whether this fork server stands still for good."""
        return any(frozen.pid == pid for frozen in self._frozen)

    def look(self, pools: list[Pool], *, give_up: bool = False) -> list[str]:
        """Note who has been replaced, and who should have been; `give_up`: let all go. A sentence for each."""
        now = time.monotonic()
        self._held_at |= {pool.number: now for pool in pools if self._is_held(pool)}
        told = []
        for frozen in list(self._frozen):
            if said := self._look_at(frozen, now) or ("let go" if give_up else ""):
                self._frozen.remove(frozen)
                self._stops.go(frozen.fault)
                self.moments.append((frozen.pool.name, frozen.begun, now))
                told.append(f"{frozen.pool.name}: the fork server {frozen.pid} that stood still was {said}")
        return told

    def _look_at(self, frozen: Frozen, now: float) -> str:
        """Tell what became of it; "" = it stands."""
        if not processes.is_alive(frozen.pid):
            return f"ended after {now - frozen.begun:.1f} s"
        if frozen.pool.pid != frozen.master:
            return "let go, for its master has ended"
        frozen.since = max(frozen.since, self._held_at.get(frozen.pool.number, 0.0))
        if now - frozen.since < FROZEN_LIMIT_S:
            return ""
        self.found.append(
            f"{frozen.pool.name}: its fork server {frozen.pid} stood still for {now - frozen.begun:.0f} s"
        )
        return "not ended by its pool, and let go"

    def judge_log(self, pool: Pool, seconds: float) -> None:
        """Look whether that pool's master has gone on while nobody read its log, for so long."""
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
