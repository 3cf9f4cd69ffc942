"""The scheduler beside the pool: when it is started, replaced, ended. Decisions, no I/O; scheduling.py has the state.

There is one, where the settings ask for it, from the first ready child on. One that ends by itself is started again,
after a back-off. When a new app has loaded, a second one is started, and the first is asked to end once the second is
ready: an app whose schedules are refused costs nobody the scheduler that runs. Two at once fire nothing twice.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from jobpool.ipc.scheduler_process import REFUSED
from jobpool.master import actions as act
from jobpool.master.slots import SlotState

if TYPE_CHECKING:
    from jobpool.master import events as ev
    from jobpool.master.actions import Action
    from jobpool.master.scheduling import Scheduler
    from jobpool.master.state import Pool


def keep_companion(pool: Pool, now: float, actions: list[Action]) -> None:
    """Start it; beside it one with the new app; and end what that one replaces, once it is ready."""
    state = pool.schedulers
    for one in state.running.values():
        _keep(pool, one, now, actions)
    if any(one.generation == pool.generation and one.is_steady(now) for one in state.serving):
        state.failures = 0
    if _is_wanted(pool, now):
        actions.append(act.StartScheduler())


def _keep(pool: Pool, one: Scheduler, now: float, actions: list[Action]) -> None:
    """End it when it is replaced, or does not come up."""
    replaced = any(other.ready and other.generation > one.generation for other in pool.schedulers.serving)
    if one.asked_at or replaced:
        _ask_to_end(one, now, now - one.asked_at >= pool.settings.stop_grace, actions)
    elif not one.ready and now - one.started_at >= pool.settings.boot_timeout:
        one.error = f"it was not ready after {pool.settings.boot_timeout:g} s"
        _kill(one, actions)


def _is_wanted(pool: Pool, now: float) -> bool:
    """Whether one is to be started: one at a time, a new app at once, and what has failed after a pause.

    What was refused is tried again with the next app; before that only where there is no scheduler at all: its files
    may have been half of a deployment.
    """
    state, serving = pool.schedulers, pool.schedulers.serving
    if not pool.slots.count(SlotState.IDLE, SlotState.BUSY):
        return False
    if any(not one.ready or one.generation == pool.generation for one in serving):
        return False
    return state.tried < pool.generation or (now >= state.next_at and not (serving and state.refused))


def end_companion(pool: Pool, now: float, over: bool, actions: list[Action]) -> None:
    """The pool stops: let it finish what it runs; when the grace is `over`, kill it."""
    for one in pool.schedulers.running.values():
        _ask_to_end(one, now, over, actions)


def _ask_to_end(one: Scheduler, now: float, over: bool, actions: list[Action]) -> None:
    """Marked here, and not when it is performed: a signal cannot fail in a way that a second one would mend."""
    if not one.asked_at:
        one.asked_at = now
        actions.append(act.SignalScheduler(one.pid, signal.SIGTERM))
    elif over:
        _kill(one, actions)


def _kill(one: Scheduler, actions: list[Action]) -> None:
    if not one.killed:
        one.killed = True
        actions.append(act.SignalScheduler(one.pid, signal.SIGKILL))


def companion_started(pool: Pool, event: ev.SchedulerStarted) -> None:
    pool.schedulers.began(event.pid, pool.generation, pool.now)
    pool.note("info", "the scheduler starts", pid=event.pid)


def companion_refused(pool: Pool, event: ev.SchedulerRefused) -> None:
    pool.schedulers.tried = pool.generation
    pause = pool.schedulers.failed(pool.now, event.error)
    pool.note("error", "no scheduler could be started", error=event.error, again_in=pause)


def companion_ready(pool: Pool, event: ev.SchedulerReady) -> None:
    one = pool.schedulers.running.get(event.pid)
    if one is not None:
        pool.schedulers.became_ready(one)


def companion_ended(pool: Pool, event: ev.SchedulerEnded) -> None:
    one = pool.schedulers.running.pop(event.pid, None)
    if one is None:
        return
    if one.asked_at or pool.is_stopping:
        pool.note("info", "the scheduler has ended", pid=one.pid, status=event.status)
    elif _is_refusal(pool, one, event):
        _schedules_refused(pool, event.error)
    else:
        error = one.error or event.error
        pause = pool.schedulers.failed(pool.now, error, one.is_steady(pool.now))
        text = "the scheduler died; another is started"
        pool.note("error", text, status=event.status, error=error or None, again_in=pause)


def _is_refusal(pool: Pool, one: Scheduler, event: ev.SchedulerEnded) -> bool:
    """Whether its app's schedules cannot work. Of an app that a reload has replaced meanwhile, that says nothing."""
    said = event.status == REFUSED and bool(event.error)
    return said and not one.ready and one.generation == pool.generation


def _schedules_refused(pool: Pool, error: str) -> None:
    """At the very first start that ends the pool, as an app does that does not import."""
    state = pool.schedulers
    if not state.was_ready and not state.failures:
        pool.fatal = f"the scheduler cannot start: {error}"
        pool.stop("the schedules are refused")
        return
    state.refused = error
    pause = state.failed(pool.now, error)
    if state.serving:
        pool.note("error", "the schedules are refused; the scheduler that runs goes on", error=error)
    else:
        pool.note("error", "the schedules are refused; there is no scheduler", error=error, again_in=pause)
