"""`apply`: one event in, the pool's state changed. Bookkeeping: no I/O, no decisions."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from jobpool.clock import ONE_SIGNAL_S
from jobpool.master import events as ev
from jobpool.master.on_children import ON_CHILDREN
from jobpool.master.on_messages import ON_MESSAGES
from jobpool.master.scheduler import ON_SCHEDULERS
from jobpool.master.serving import Surveyed, note_unserved
from jobpool.master.state import Pool

_COMMON = {ev.ChildResults, ev.Leased, ev.Answered, ev.TookBack, ev.Renewed, ev.Sampled, ev.Counted, ev.LoopCall}
_COMMON |= {ev.FrameCame, ev.AppSaid, ev.NotBegun}
"""Events that come all the time and never call for another child, but for some frames: see `on_children`."""


def apply(pool: Pool, event: ev.Event, now: float) -> None:
    """Note what happened: the one place where an event is dispatched. `now`: CLOCK_MONOTONIC seconds."""
    pool.now = now
    kind = type(event)
    _APPLY[kind](pool, event)
    if kind not in _COMMON:
        pool.changed = True
    if 0 < pool.settings.max_total <= pool.ended_total and not pool.is_stopping:
        pool.stop("as many jobs as were asked for are done")


def _signal(pool: Pool, event: ev.SignalCame) -> None:
    match event.number:
        case signal.SIGTERM | signal.SIGINT:
            if event.number == pool.stop_signal and pool.now < pool.stop_signal_at + ONE_SIGNAL_S:
                return
            pool.stop_signal, pool.stop_signal_at = event.number, pool.now
            again = "a second signal: running jobs are killed and go back to their queues"
            pool.stop(again if pool.is_stopping else "stopping", event.number)
        case signal.SIGQUIT:
            pool.stacks_asked = True
        case signal.SIGHUP if event.terminal_closed:
            if not pool.is_stopping:  # the kernel and the shell both send it
                pool.stop("stopping: the terminal was closed", event.number)
        case signal.SIGHUP:
            if not pool.reload_asked:
                pool.note("info", "reload asked for", signal="SIGHUP")
            pool.reload_asked = True
        case signal.SIGTTIN | signal.SIGTTOU:
            more = 1 if event.number == signal.SIGTTIN else -1
            pool.target = min(max(1, pool.target + more), len(pool.slots.all) - 1)
            name = signal.Signals(event.number).name
            pool.note("info", "told how many workers to run", signal=name, workers=pool.target)


def _thread_died(pool: Pool, event: ev.ThreadDied) -> None:
    if pool.is_stopping and event.name in ("settle", "renew"):  # what runs could not be settled, or would run elsewhere
        pool.stop(f"the {event.name} thread has died: running jobs are killed", level="error")
    if event.error:
        pool.note("critical", "the broker refuses what the pool cannot do without", error=event.error)
        pool.fail(event.error, "stopping after a refusal")
    else:
        report = f"a fault in {event.package}, please report it"
        pool.note("critical", f"a thread of the master failed: {report}", trace=event.trace)
        what = f"the {event.name} thread of the master failed; leases it held come back when they expire"
        pool.fail(what, "stopping after a fault")


_APPLY: dict[type[Any], Callable[[Pool, Any], None]] = {
    **ON_MESSAGES,
    **ON_CHILDREN,
    **ON_SCHEDULERS,
    Surveyed: note_unserved,
    ev.LoopCall: lambda pool, event: event.make(pool),
    ev.Requested: lambda pool, event: pool.requests.append((event.request, event.answer)),
    ev.SignalCame: _signal,
    ev.ThreadDied: _thread_died,
}
