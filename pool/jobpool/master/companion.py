"""The scheduler beside the pool: when it is started, replaced and ended. Decisions and bookkeeping, no I/O.

There is one, where the settings ask for it, from the first ready child on. One that ends by itself is started again,
after a back-off; one of an old app is asked to end when a new app has loaded, and its successor comes when it is gone.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from jobpool.master import actions as act
from jobpool.master.slots import SlotState

if TYPE_CHECKING:
    from jobpool.master import events as ev
    from jobpool.master.actions import Action
    from jobpool.master.pool import Pool

FIRST = 1.0
LONGEST = 30.0
"""Seconds between the end of one that ended by itself and the next: doubling from the one to the other."""

STEADY = 60.0
"""Seconds after which one that ends by itself counts as the first to do so."""

TROUBLE = 3
"""From so many ends in a row on, the pool says so (health)."""


class CompanionState:
    """What the pool knows of its scheduler. Times are CLOCK_MONOTONIC seconds; pid 0 = there is none."""

    def __init__(self) -> None:
        self.pid = 0
        self.generation = 0
        self.started_at = 0.0
        self.asked_at = 0.0
        self.killed = False
        self.failures = 0
        self.next_at = 0.0

    def began(self, pid: int, generation: int, now: float) -> None:
        """It was started, and will import the app of this generation or a later one."""
        self.pid, self.generation, self.started_at = pid, generation, now
        self.asked_at, self.killed = 0.0, False

    def failed(self, now: float) -> float:
        """It ended by itself, or could not be started; for how many seconds there is none."""
        steady = self.pid and now - self.started_at >= STEADY
        self.failures = 1 if steady else self.failures + 1
        pause = min(LONGEST, FIRST * 2.0 ** min(self.failures - 1, 30))
        self.pid, self.next_at = 0, now + pause
        return pause

    def ended(self, now: float) -> None:
        """It ended because it was told to."""
        self.pid, self.failures, self.next_at = 0, 0, now

    @property
    def problem(self) -> str:
        return "the scheduler does not stay up" if self.failures >= TROUBLE else ""


def keep_companion(pool: Pool, now: float, actions: list[Action]) -> None:
    """Start it, or replace it by one with the new app."""
    state = pool.companion
    if state.pid:
        if state.generation < pool.generation:
            _ask_to_end(pool, now, now - state.asked_at >= pool.settings.stop_grace, actions)
    elif pool.slots.count(SlotState.IDLE, SlotState.BUSY) and now >= state.next_at:
        actions.append(act.StartCompanion())


def end_companion(pool: Pool, now: float, over: bool, actions: list[Action]) -> None:
    """The pool stops: let it finish what it runs; when the grace is `over`, kill it."""
    if pool.companion.pid:
        _ask_to_end(pool, now, over, actions)


def _ask_to_end(pool: Pool, now: float, over: bool, actions: list[Action]) -> None:
    """Marked here, and not when it is performed: a signal cannot fail in a way that a second one would mend."""
    state = pool.companion
    if not state.asked_at:
        state.asked_at = now
        actions.append(act.SignalCompanion(signal.SIGTERM))
    elif over and not state.killed:
        state.killed = True
        actions.append(act.SignalCompanion(signal.SIGKILL))


def companion_started(pool: Pool, event: ev.CompanionStarted) -> None:
    pool.companion.began(event.pid, pool.generation, pool.now)
    pool.note("info", "the scheduler starts", pid=event.pid)


def companion_refused(pool: Pool, event: ev.CompanionRefused) -> None:
    pause = pool.companion.failed(pool.now)
    pool.note("error", "no scheduler could be started", error=event.error, again_in=pause)


def companion_ended(pool: Pool, event: ev.CompanionEnded) -> None:
    state = pool.companion
    if state.asked_at or pool.is_stopping:
        state.ended(pool.now)
        pool.note("info", "the scheduler has ended", status=event.status)
    else:
        pause = state.failed(pool.now)
        pool.note("error", "the scheduler died; another is started", status=event.status, again_in=pause)
