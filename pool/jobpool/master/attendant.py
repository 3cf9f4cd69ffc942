"""The I/O of the scheduler beside the pool: carries out what the plan asks, and tells when it is ready or has ended."""

from __future__ import annotations

import os

from jobpool.ipc.scheduler_process import Companion, CronStart
from jobpool.master import events as ev
from jobpool.master.crew import Crew


class Attendant:
    """For the loop's thread. Nothing here waits.

    Args:
        start: What a scheduler is told.
        crew: Watches its line and its end, and leaves it alone when it sweeps.
    """

    def __init__(self, start: CronStart, crew: Crew) -> None:
        self._start = start
        self._crew = crew
        self._companions: dict[int, Companion] = {}

    def start(self) -> ev.Event:
        """Start one."""
        try:
            companion = Companion.start(self._start, os.environ)
        except OSError as error:
            return ev.CompanionRefused(str(error))
        self._companions[companion.pid] = companion
        self._crew.spare(companion.pid)
        self._crew.watch(companion.line, lambda: self._hear(companion))
        self._crew.watch(companion.fileno(), lambda: self._read(companion))
        return ev.CompanionStarted(companion.pid)

    def signal(self, pid: int, number: int) -> None:
        companion = self._companions.get(pid)
        if companion is not None:
            companion.signal(number)

    def _hear(self, companion: Companion) -> list[ev.Event]:
        was_ready = companion.is_ready
        if not companion.hear():
            self._crew.unwatch(companion.line)
        events: list[ev.Event] = [ev.CompanionReady(companion.pid)] if companion.is_ready and not was_ready else []
        if companion.fired:
            events.append(ev.CompanionFired(companion.fired))
            companion.fired = []
        return events

    def _read(self, companion: Companion) -> list[ev.Event]:
        status = companion.poll()
        if status is None:
            return []
        events = self._hear(companion)
        self._crew.unwatch(companion.line)
        self._crew.unwatch(companion.fileno())
        companion.close()
        self._crew.spare_no_more(companion.pid)  # what it left behind is swept
        del self._companions[companion.pid]
        return [*events, ev.CompanionEnded(companion.pid, status, companion.error)]
