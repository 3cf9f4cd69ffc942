"""The scheduler beside the pool: when it is started, replaced and ended, and the I/O of that.

There is one, where the settings ask for it, from the first ready child on. One that ends by itself is started again,
after a back-off. When a new app has loaded, a second one is started. The first is asked to end once the second is
ready, so an app with refused schedules leaves the first one running. An app whose last schedule was taken out gets one
that fires nothing. Two at once fire nothing twice. One that hangs is killed, unless it runs a job in its own process.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import orjson
from msgspec import structs

from jobpool.ipc.scheduler_process import REFUSED, CronStart, SchedulerProcess
from jobpool.master import events as ev
from jobpool.master.actions import Action
from jobpool.master.child_processes import ChildProcesses
from jobpool.master.events import Event
from jobpool.master.slots import SlotState
from jobpool.master.state import Pool, Scheduler
from jobpool.message.units import format_duration
from jobpool.telemetry.metrics.catalogue import CRON_LATENESS

SILENT_AFTER_S = 60.0  # seconds without a turn after which it hangs: a turn is some calls to the broker, with timeouts
SCHEDULER_STOP_S = 5.0  # seconds in which one that runs no job ends, once it was asked to
QUEUE_MEND = "give the schedule a queue: then its job can neither hold up nor end the others, and has a hard timeout"


class SchedulerStarted(Event):
    pid: int


class SchedulerRefused(Event):
    error: str


class SchedulerReady(Event):
    """Its schedules are good, and its broker has answered: it fires from now on."""

    pid: int


class SchedulerTurned(Event):
    """It is alive. `runs`: the schedule whose job it begins to run in its own process; "" = it runs none."""

    pid: int
    runs: str


class SchedulerFired(Event):
    """It has fired. `lateness`: seconds from each instant to its firing."""

    lateness: list[float]


class SchedulerEnded(Event):
    """It was collected. `status`: as `subprocess` has it, negative = by that signal. `error`: its last words, or ""."""

    pid: int
    status: int
    error: str = ""


class StartScheduler(Action):
    may_be_empty: bool  # see `CronStart`


class SignalScheduler(Action):
    pid: int
    number: int


def keep_scheduler(pool: Pool, now: float, actions: list[Action]) -> None:
    """Start one, start another for a new app, and end the first once the other is ready."""
    state = pool.schedulers
    for one in state.running.values():
        replaced = any(other.ready and other.generation > one.generation for other in state.serving)
        if one.asked_at or replaced:
            end_scheduler(one, now, False, actions)
        elif not (one.ready or one.killed) and now - one.started_at >= pool.settings.boot_timeout:
            one.error, one.killed = f"it was not ready after {pool.settings.boot_timeout:g} s", True
            actions.append(SignalScheduler(one.pid, signal.SIGKILL))
        elif one.ready:
            _watch(pool, one, now, actions)
    if any(one.generation == pool.generation and one.is_steady(now) for one in state.serving):
        state.failures = 0
    if _is_wanted(pool, now):
        actions.append(StartScheduler(may_be_empty=state.was_ready))


def _watch(pool: Pool, one: Scheduler, now: float, actions: list[Action]) -> None:
    """Tell of one that does not turn, and kill it if it runs no job."""
    silent = now - one.heard_at
    if silent < SILENT_AFTER_S or one.killed:
        return
    since = f"has not turned for {format_duration(silent)}"
    if not one.runs:
        one.silence, one.error, one.killed = f"the scheduler {since}", f"it {since}", True
        actions.append(SignalScheduler(one.pid, signal.SIGKILL))
        return
    if not one.silence:
        pool.note("warning", "a job keeps the scheduler from firing", schedule=one.runs, mend=QUEUE_MEND)
    one.silence = f"the scheduler {since}: it runs the job of {one.runs!r} itself"


def _is_wanted(pool: Pool, now: float) -> bool:
    """Return whether one is to be started: one at a time, a new app at once, and what has failed after a pause.

    Refused schedules are tried again before the next app only if there is no scheduler: it may be half a deployment.
    """
    state, serving = pool.schedulers, pool.schedulers.serving
    if not pool.slots.count(SlotState.IDLE, SlotState.BUSY):
        return False
    if any(not one.ready or one.generation == pool.generation for one in serving):
        return False
    return state.tried < pool.generation or (now >= state.next_at and not (serving and state.refused))


def end_scheduler(one: Scheduler, now: float, over: bool, actions: list[Action]) -> None:
    """Let it finish the job that it runs; when the grace is `over`, or if it runs none and hangs, kill it."""
    if not one.asked_at:
        one.asked_at = now
        actions.append(SignalScheduler(one.pid, signal.SIGTERM))
    elif not one.killed and (over or (not one.runs and now - max(one.asked_at, one.heard_at) >= SCHEDULER_STOP_S)):
        one.killed = True
        actions.append(SignalScheduler(one.pid, signal.SIGKILL))


def _started(pool: Pool, event: SchedulerStarted) -> None:
    pool.schedulers.running[event.pid] = Scheduler(event.pid, pool.generation, pool.now)
    pool.schedulers.tried = pool.generation
    pool.note("info", "the scheduler starts", pid=event.pid)


def _start_refused(pool: Pool, event: SchedulerRefused) -> None:
    pool.schedulers.tried = pool.generation
    pause = pool.schedulers.failed(event.error, pool.now)
    pool.note("error", "no scheduler could be started", error=event.error, again_in=pause)


def _ready(pool: Pool, event: SchedulerReady) -> None:
    if one := pool.schedulers.running.get(event.pid):
        one.ready = pool.schedulers.was_ready = True
        one.heard_at = pool.now
        pool.schedulers.refused = ""


def _turned(pool: Pool, event: SchedulerTurned) -> None:
    if one := pool.schedulers.running.get(event.pid):
        one.heard_at, one.runs, one.silence = pool.now, event.runs, ""


def _fired(pool: Pool, event: SchedulerFired) -> None:
    for seconds in event.lateness:
        pool.metrics.observe(CRON_LATENESS, seconds)


def _ended(pool: Pool, event: SchedulerEnded) -> None:
    one = pool.schedulers.running.pop(event.pid, None)
    if one is None:
        return
    if one.asked_at or pool.is_stopping:
        status = 0 if event.status == -signal.SIGTERM else event.status  # while it starts, TERM ends it by default
        pool.note("info", "the scheduler has ended", pid=one.pid, status=status)
    elif event.status == REFUSED and event.error and not one.ready and one.generation == pool.generation:
        _schedules_refused(pool, event.error)  # the end of a replaced app's scheduler says nothing of that
    else:
        if one.is_steady(pool.now):
            pool.schedulers.failures = 0
        error = one.error or event.error
        again = {"error": error or None, "again_in": pool.schedulers.failed(error, pool.now)}
        ran = {"schedule": one.runs, "mend": QUEUE_MEND} if one.runs else {}
        pool.note("error", "the scheduler died; another is started", status=event.status, **ran, **again)


def _schedules_refused(pool: Pool, error: str) -> None:
    """End the pool at the very first start, as for an app that does not import; else say it."""
    state = pool.schedulers
    if not state.was_ready and not state.failures:
        pool.fail(f"the scheduler cannot start: {error}", "the schedules are refused")
        return
    state.refused, pause = error, state.failed(error, pool.now)
    then = "the scheduler that runs goes on" if state.serving else "there is no scheduler"
    pool.note("error", f"the schedules are refused; {then}", error=error, again_in=None if state.serving else pause)


ON_SCHEDULERS: dict[type[Any], Callable[[Pool, Any], None]] = {
    SchedulerStarted: _started,
    SchedulerRefused: _start_refused,
    SchedulerReady: _ready,
    SchedulerTurned: _turned,
    SchedulerFired: _fired,
    SchedulerEnded: _ended,
}


class SchedulerStarter:
    """The part that starts and signals schedulers, and turns what they say into events. Nothing here waits."""

    def __init__(self, start: CronStart, children: ChildProcesses) -> None:
        self._start = start
        self._children = children
        self._processes: dict[int, SchedulerProcess] = {}

    def start(self, may_be_empty: bool) -> Event:
        try:
            process = SchedulerProcess(structs.replace(self._start, may_be_empty=may_be_empty), os.environ)
        except OSError as error:
            return SchedulerRefused(str(error))
        self._processes[process.pid] = process
        self._children.spare(process.pid)
        self._children.watch(process.line, lambda: self._hear(process))
        self._children.watch(process.fileno(), lambda: self._collect(process))
        self._children.watch(process.output.fd, lambda: self._log(process))
        return SchedulerStarted(process.pid)

    def signal(self, pid: int, number: int) -> None:
        if process := self._processes.get(pid):
            process.signal(number)

    def kill(self) -> None:
        """Kill all, and let go of them."""
        while self._processes:
            pid, process = self._processes.popitem()
            self._children.spare_no_more(pid)  # so it is swept itself
            process.poll()
            process.close()

    def _hear(self, process: SchedulerProcess) -> list[Event]:
        was_ready = process.is_ready
        if not process.hear():
            self._children.unwatch(process.line)
        events: list[Event] = [SchedulerReady(process.pid)] if process.is_ready and not was_ready else []
        if process.turned is not None:
            events.append(SchedulerTurned(process.pid, process.turned))
            process.turned = None
        if process.fired:
            events.append(SchedulerFired(process.fired))
            process.fired = []
        return events

    def _log(self, process: SchedulerProcess) -> list[Event]:
        """Log its records as this process's own; its other lines are events."""
        events = [ev.AppSaid(line, "scheduler") for line in process.output.read() if not _log_record(line)]
        if process.output.ended:
            self._children.unwatch(process.output.fd)
        return list(events)

    def _collect(self, process: SchedulerProcess) -> list[Event]:
        status = process.poll()
        if status is None:
            return []
        events = self._hear(process) + self._log(process)
        self._children.unwatch(process.output.fd)
        self._children.unwatch(process.line)
        self._children.unwatch(process.fileno())
        process.close()
        self._children.spare_no_more(process.pid)  # its own leftovers are swept
        del self._processes[process.pid]
        return [*events, SchedulerEnded(process.pid, status, process.error)]


def _log_record(line: str) -> bool:
    """Log the record that a line of JSON is (`JsonFormatter`); return False if it is none."""
    try:
        fields = orjson.loads(line)
        level, name, event = (str(fields.pop(key)) for key in ("level", "logger", "event"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return False
    fields.pop("time", None)
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    logging.getLogger(name).log(number, event, extra={"fields": fields})
    return True
