"""The queues that a pool serves, and the warnings about jobs that would wait where nothing serves them. No I/O.

Without the setting `queues` a pool serves the queues that its app's handlers and schedules name. A reload adds those of
the new code. It drops none, for jobs of the old code may wait there; the next start does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any

from msgspec import Struct, field

from jobpool.ipc.frames import HandlerInfo
from jobpool.master.events import Event
from jobpool.master.state import Pool
from jobpool.message.names import DEFAULT_QUEUE
from jobpool.settings import Settings

START_ONE = "serve it (--queue NAME, repeatable), or start another pool that does"


class OtherPools(Struct, frozen=True):
    """The other pools that are seen from here: those of this user, on this machine and the same broker."""

    queues: frozenset[str] = field(default_factory=frozenset)  # that they serve
    has_scheduler: bool = False


class Surveyed(Event):
    """The first look round, at a start and after a reload. `waiting`: queue that nothing here serves → its jobs."""

    other_pools: OtherPools
    waiting: dict[str, int]


def named_queues(handlers: Iterable[HandlerInfo]) -> tuple[str, ...]:
    """Return the queues to which jobs of these handlers go, sorted; the default queue if they name none."""
    return tuple(sorted(set(chain.from_iterable(info.queues for info in handlers)))) or (DEFAULT_QUEUE,)


def unserved_handlers(handlers: Iterable[HandlerInfo], served: Collection[str]) -> dict[str, list[str]]:
    """Return, by queue, the handlers whose jobs go where nothing serves them. Built-in ones ask for no queue."""
    found: dict[str, list[str]] = {}
    for info in handlers:
        for queue in info.queues:
            if queue not in served and not (info.built_in and queue == DEFAULT_QUEUE):
                found.setdefault(queue, []).append(info.name)
    return found


def unserved_limits(settings: Settings, served: Collection[str]) -> list[str]:
    """Return a sentence for each limit of a queue that the pool does not serve: meant for another pool, or mistyped.

    None if it is not known what the pool serves.
    """
    shown = ", ".join(map(repr, served))
    return [
        f"{table} limits queue {queue!r}, which this pool does not serve; it serves {shown}"
        for table in ("concurrency_limits", "concurrency_per_key", "rate_limits", "rate_per_key")
        for queue in getattr(settings, table)
        if served and queue not in served
    ]


def serve_named(pool: Pool, handlers: Iterable[HandlerInfo], *, is_first: bool) -> None:
    """Take up the queues that newly loaded handlers name."""
    named = () if pool.settings.queues else named_queues(handlers)
    new = [queue for queue in named if queue not in pool.queues]
    if new and not (is_first or pool.can.makes_queues):  # one that is not there would end the pool
        why = "this broker's queues must exist, which is checked at a start: restart the pool"
        pool.note("warning", "new queues of the app are not served yet", queues=new, mend=why)
        new = []
    pool.queues |= dict.fromkeys(new, 1.0)
    for queue in pool.queues:
        pool.metrics.fetched(queue, 0)  # so that an alert sees a queue of which nothing was fetched yet
    if new and not is_first:
        pool.note("info", "the pool serves more queues", queues=new)
    for unserved in unserved_limits(pool.settings, pool.queues) if is_first else ():
        pool.note("warning", "a limit limits nothing here", limit=unserved)


def note_unserved(pool: Pool, event: Surveyed) -> None:
    """Say what nothing serves, each thing once."""
    for warning, fields in _warnings(pool, event):
        told = f"{warning}: {fields}"
        if told not in pool.told_unserved:
            pool.told_unserved.add(told)
            pool.note("warning", warning, **fields)


def _warnings(pool: Pool, event: Surveyed) -> Iterator[tuple[str, dict[str, Any]]]:
    handlers = pool.handlers.values()
    served = pool.queues.keys() | event.other_pools.queues
    if unserved := unserved_handlers(handlers, served):
        shown = "; ".join(f"{queue}: {', '.join(names)}" for queue, names in unserved.items())
        yield "no pool here serves the queue of some handlers", {"handlers": shown, "mend": START_ONE}
    if event.waiting:
        shown = ", ".join(f"{queue} ({count:,})" for queue, count in event.waiting.items())
        yield "jobs wait in queues that no pool here serves", {"queues": shown, "mend": START_ONE}
    schedules = sorted(chain.from_iterable(info.schedules for info in handlers))
    if schedules and not (pool.settings.cron or event.other_pools.has_scheduler):
        mend = "start one pool with --cron, or run `jobpool cron run`, if neither does elsewhere"
        yield "the app has schedules, and no pool here fires them", {"schedules": schedules, "mend": mend}
