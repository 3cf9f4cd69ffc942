"""The I/O of the scheduler beside the pool: carries out what the plan asks, and tells when it is ready or has ended."""

from __future__ import annotations

import os

from jobpool.ipc.scheduler_process import CronStart, SchedulerProcess
from jobpool.master import events as ev
from jobpool.master.child_processes import ChildProcesses


class SchedulerStarter:
    """For the loop's thread. Nothing here waits.

    Args:
        start: What a scheduler is told.
        children: Watches its line and its end, and leaves it alone when it sweeps.
    """

    def __init__(self, start: CronStart, children: ChildProcesses) -> None:
        self._start = start
        self._children = children
        self._companions: dict[int, SchedulerProcess] = {}

    def start(self) -> ev.Event:
        """Start one."""
        try:
            companion = SchedulerProcess.start(self._start, os.environ)
        except OSError as error:
            return ev.SchedulerRefused(str(error))
        self._companions[companion.pid] = companion
        self._children.spare(companion.pid)
        self._children.watch(companion.line, lambda: self._hear(companion))
        self._children.watch(companion.fileno(), lambda: self._read(companion))
        return ev.SchedulerStarted(companion.pid)

    def signal(self, pid: int, number: int) -> None:
        companion = self._companions.get(pid)
        if companion is not None:
            companion.signal(number)

    def _hear(self, companion: SchedulerProcess) -> list[ev.Event]:
        was_ready = companion.is_ready
        if not companion.hear():
            self._children.unwatch(companion.line)
        events: list[ev.Event] = [ev.SchedulerReady(companion.pid)] if companion.is_ready and not was_ready else []
        if companion.fired:
            events.append(ev.SchedulerFired(companion.fired))
            companion.fired = []
        return events

    def _read(self, companion: SchedulerProcess) -> list[ev.Event]:
        status = companion.poll()
        if status is None:
            return []
        events = self._hear(companion)
        self._children.unwatch(companion.line)
        self._children.unwatch(companion.fileno())
        companion.close()
        self._children.spare_no_more(companion.pid)  # what it left behind is swept
        del self._companions[companion.pid]
        return [*events, ev.SchedulerEnded(companion.pid, status, companion.error)]
