"""Writes the pool's state to the scoreboard, and its notes to the log. Reads the state, changes nothing of it."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict

from jobpool.errors import BackendUnavailable
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master.slots import Slot, SlotState
from jobpool.master.spawning import reload_under_way
from jobpool.master.state import Pool

PUBLISH_EVERY_S = 0.25
"""Seconds between two writes: a person reads it, and each costs some microseconds a slot."""

log = logging.getLogger("jobpool.pool")


class Publisher:
    """Keeps what was last written of each slot, so that only changes are."""

    def __init__(self, board: Scoreboard, **constants: str | int | float) -> None:
        self._board = board
        self._last: dict[int, tuple[object, ...]] = {}
        self._cpu: dict[int, float] = {}
        board.header.write(pid=os.getpid(), started=time.monotonic(), started_wall=time.time(), **constants)

    def note_cpu(self, child: int, share: float) -> None:
        """A child's share of one core, from its last sample."""
        self._cpu[child] = share

    def publish(self, pool: Pool, now: float, broker_ok_at: float, reaped_at: float) -> None:
        """Write what has changed. The caller keeps to `PUBLISH_EVERY_S`."""
        ready = sum(slot.is_ready for slot in pool.slots)
        self._board.header.write(
            workers=pool.target,
            ready=ready,
            boot_failures=pool.boot.failures,
            draining=int(pool.is_stopping),
            generation=pool.generation,
            loop_at=now,
            broker_ok_at=broker_ok_at,
            reaped_at=reaped_at,
            problem=_problem(pool),
            **asdict(pool.counters),
        )
        for slot in pool.slots:
            self._publish_slot(slot)

    def _publish_slot(self, slot: Slot) -> None:
        cpu = self._cpu.get(slot.child, 0.0)
        state = (slot.state, slot.pid, slot.child, slot.generation, slot.rss, slot.peak_rss, slot.restarts, cpu)
        if self._last.get(slot.index) == state or (slot.state is SlotState.EMPTY and slot.restarts < 0):
            return
        self._last[slot.index] = state
        self._board.slot(slot.index).master.write(
            state=slot.state.value,
            pid=slot.pid,
            child=slot.child,
            generation=slot.generation,
            rss=slot.rss,
            peak_rss=slot.peak_rss,
            restarts=max(0, slot.restarts),
            crashes=slot.crashes,
            timeouts=slot.timeouts,
            cpu=cpu,
            since=slot.since,
            last_death=slot.last_death,
        )

    def log_notes(self, pool: Pool) -> None:
        """Write the notes to the log and drop them."""
        notes, pool.notes = pool.notes, []
        for note in notes:
            log.log(note.level, note.event, extra={"fields": note.fields, "limit": note.event})


def _problem(pool: Pool) -> str:
    if pool.outages:
        refusal = next((error for kind, error in pool.outages.values() if kind is not BackendUnavailable), None)
        return refusal or "the broker does not answer"
    if pool.boot.failures:
        return f"children do not come up: {pool.boot.last_error}"
    return pool.schedulers.problem or reload_under_way(pool)
