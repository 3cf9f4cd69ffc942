"""What a pool knows of the schedulers beside it: bookkeeping, in which companion.py decides."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SCHEDULER_PAUSE_S = 1.0
MAX_SCHEDULER_PAUSE_S = 30.0
"""Seconds between the end of one that ended by itself and the next: doubling from the one to the other."""

STEADY_AFTER_S = 60.0
"""Seconds after which one that ends by itself counts as the first to do so."""

TROUBLE_AFTER_ENDS = 3
"""From so many ends in a row on, the pool says so (health)."""


@dataclass(slots=True)
class Scheduler:
    """One scheduler's process. Times are CLOCK_MONOTONIC seconds.

    Attributes:
        pid: Of the process.
        generation: It has imported the app of this generation or a later one.
        started_at: When it was executed.
        ready: Its schedules are good, and its broker has answered.
        asked_at: When it was told to end; 0 = it was not.
        killed: It was sent SIGKILL.
        error: Why it is ended, if that is its own fault.
    """

    pid: int
    generation: int
    started_at: float
    ready: bool = False
    asked_at: float = 0.0
    killed: bool = False
    error: str = ""

    def is_steady(self, now: float) -> bool:
        return self.ready and now - self.started_at >= STEADY_AFTER_S


class Schedulers:
    """What the pool knows of its schedulers. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self) -> None:
        self.running: dict[int, Scheduler] = {}
        self.was_ready = False
        self.tried = 0
        """The last generation of which one was started, or could not be."""
        self.failures = 0
        self.next_at = 0.0
        self.error = ""
        """Of the last one that ended by itself."""
        self.refused = ""
        """Why the schedules of the generation that was tried last cannot work; "" = nothing is known of that."""

    @property
    def serving(self) -> list[Scheduler]:
        """Those that were not asked to end, the oldest first."""
        return [one for one in self.running.values() if not one.asked_at]

    def began(self, pid: int, generation: int, now: float) -> None:
        """It was started."""
        self.running[pid] = Scheduler(pid, generation, now)
        self.tried = generation

    def became_ready(self, one: Scheduler) -> None:
        """It fires from now on."""
        one.ready = self.was_ready = True
        self.refused = ""

    def failed(self, now: float, error: str = "", steady: bool = False) -> float:
        """One ended by itself, or could not be started; for how many seconds none is started."""
        self.failures = 1 if steady else self.failures + 1
        self.error = error
        pause = min(MAX_SCHEDULER_PAUSE_S, FIRST_SCHEDULER_PAUSE_S * 2.0 ** min(self.failures - 1, 30))
        self.next_at = now + pause
        return pause

    @property
    def problem(self) -> str:
        if self.refused:
            which = "the new schedules are refused, the old ones go on" if self.serving else "there is no scheduler"
            return f"{which}: {self.refused}"
        if self.failures < TROUBLE_AFTER_ENDS:
            return ""
        return "the scheduler does not stay up" + (f": {self.error}" if self.error else "")
