"""The I/O of the scheduler beside the pool: carries out what the plan asks, and tells when its process has ended."""

from __future__ import annotations

import os

from jobpool.master import events as ev
from jobpool.master.crew import Crew
from jobpool.mechanism.companion import Companion, CronStart


class Attendant:
    """For the loop's thread. Nothing here waits.

    Args:
        start: What the scheduler is told.
        crew: Watches its end, and leaves it alone when it sweeps.
    """

    def __init__(self, start: CronStart, crew: Crew) -> None:
        self._start = start
        self._crew = crew
        self._companion: Companion | None = None

    def start(self) -> ev.Event:
        """Start one."""
        try:
            companion = Companion.start(self._start, os.environ)
        except OSError as error:
            return ev.CompanionRefused(str(error))
        self._companion = companion
        self._crew.spare(companion.pid)
        self._crew.watch(companion.fileno(), lambda: self._read(companion))
        return ev.CompanionStarted(companion.pid)

    def signal(self, number: int) -> None:
        if self._companion is not None:
            self._companion.signal(number)

    def _read(self, companion: Companion) -> list[ev.Event]:
        status = companion.poll()
        if status is None:
            return []
        self._crew.unwatch(companion.fileno())
        companion.close()
        self._crew.spare_no_more(companion.pid)  # what it left behind is swept
        self._companion = None
        return [ev.CompanionEnded(status)]
