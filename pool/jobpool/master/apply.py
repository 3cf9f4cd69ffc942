"""`apply`: one event in, the pool's state changed. Bookkeeping: no I/O, no decisions."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from jobpool.master import events as ev
from jobpool.master.on_children import ON_CHILDREN
from jobpool.master.on_messages import ON_MESSAGES
from jobpool.master.scheduler import ON_SCHEDULERS, SchedulerFired
from jobpool.master.state import Pool

_COMMON = frozenset(
    {
        *(ev.ChildResult, ev.Leased, ev.Answered, ev.TookBack, ev.Renewed, ev.Sampled, ev.Counted, ev.Asked),
        SchedulerFired,
    }
)
"""Events that come all the time and never call for another child."""


def apply(pool: Pool, event: ev.Event, now: float) -> None:
    """Note what happened: the one place where an event is dispatched. `now`: CLOCK_MONOTONIC seconds."""
    pool.now = now
    kind = type(event)
    observer = pool.observers.get(kind)
    if observer is not None:
        observer(pool, event)
    _APPLY[kind](pool, event)
    if kind not in _COMMON:
        pool.changed = True
    if 0 < pool.settings.max_total <= pool.ended_total and not pool.is_stopping:
        pool.stop("as many jobs as were asked for are done")


def _signal(pool: Pool, event: ev.SignalCame) -> None:
    number = event.number
    if number in (signal.SIGTERM, signal.SIGINT):
        pool.stop("a second signal: children are killed" if pool.is_stopping else "stopping", number)
    elif number == signal.SIGQUIT:
        pool.stacks_asked = True
    elif number == signal.SIGHUP:
        pool.reload_asked = True
    elif number == signal.SIGTTIN:
        pool.target = min(pool.target + 1, len(pool.slots) - 1)
    elif number == signal.SIGTTOU:
        pool.target = max(1, pool.target - 1)


def _asked(pool: Pool, event: ev.Asked) -> None:
    event.make(pool)


def _thread_died(pool: Pool, event: ev.ThreadDied) -> None:
    if event.error:
        pool.fatal = event.error
        pool.note("critical", "the broker refuses what the pool cannot do without", error=event.error)
        pool.stop("stopping after a refusal")
        return
    pool.fatal = f"the {event.name} thread of the master failed; leases it held come back when they expire"
    pool.note("critical", "a thread of the master failed: a fault in jobpool, please report it", trace=event.trace)
    pool.stop("stopping after a fault")


_APPLY: dict[type[Any], Callable[[Pool, Any], None]] = {
    **ON_MESSAGES,
    **ON_CHILDREN,
    **ON_SCHEDULERS,
    ev.Asked: _asked,
    ev.SignalCame: _signal,
    ev.ThreadDied: _thread_died,
}
