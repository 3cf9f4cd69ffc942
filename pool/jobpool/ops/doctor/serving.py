"""Checks of jobs that would wait where no pool serves them. Pools of other users and machines are not seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding, Level
from jobpool.broker.opening import missing_database, open_backend
from jobpool.broker.values import UNHELD, MessageFilter
from jobpool.errors import JobpoolError
from jobpool.ipc.frames import HandlerInfo
from jobpool.master.run import waiting_elsewhere
from jobpool.master.serving import unserved_handlers
from jobpool.message.names import listed
from jobpool.ops.runtime_dir import PoolFile, runtime_dir, serving
from jobpool.settings import Settings

CHECK = "serving"
FIRST_JOBS = 100  # of each queue: they are looked at with their bodies, which may be large

Silent = Callable[[QueueBackend, Collection[str]], Iterable[Finding]]
"""Returns findings about the schedules of these names that fire nothing because a clock was ahead."""


def examine(settings: Settings, handlers: Sequence[HandlerInfo], silent: Silent | None) -> Iterator[Finding]:
    """Yield what waits, or would wait. Unless `silent` is None it asks the broker, which blocks for a round trip a
    queue.
    """
    try:
        pools = serving(runtime_dir(), settings.backend)
    except JobpoolError:
        pools = []
    served = {*settings.queue_names, *chain.from_iterable(pool.queues for pool in pools)}
    names = [name for info in handlers for name in info.schedules]
    bad = [*_handlers(handlers, served), *_schedules(names, settings, pools)]
    with suppress(JobpoolError):  # the check of the broker says so
        bad += _asked(settings, served, handlers, silent) if silent and (served or names) else ()
    yield from bad or [
        Finding(CHECK, Level.OK, f"queues with a pool here, or with these settings: {listed(sorted(served)) or 'none'}")
    ]


def _handlers(handlers: Sequence[HandlerInfo], served: Collection[str]) -> Iterator[Finding]:
    for queue, names in unserved_handlers(handlers, served).items():
        found = f"jobs of {listed(sorted(names))} go to queue {queue!r}"
        why = "neither these settings nor a pool here serve it, so they wait unless one elsewhere does"
        yield Finding(CHECK, Level.NOTE, found, why, f"add {queue!r} to `queues`, or leave `queues` out")


def _schedules(names: Sequence[str], settings: Settings, pools: Sequence[PoolFile]) -> Iterator[Finding]:
    if names and not (settings.cron or any(pool.scheduler for pool in pools)):
        why = "neither these settings nor a pool here fire them, so they wait unless a scheduler elsewhere does"
        mend = "set cron in one pool, or run `jobpool cron run`"
        yield Finding(CHECK, Level.NOTE, f"the app has schedules: {listed(sorted(names))}", why, mend)


def _asked(
    settings: Settings, served: Collection[str], handlers: Sequence[HandlerInfo], silent: Silent
) -> Iterator[Finding]:
    if missing_database(settings.backend):
        return
    with closing(open_backend(settings.backend)) as backend:
        yield from silent(backend, [name for info in handlers for name in info.schedules])
        waiting = waiting_elsewhere(backend, {*served, settings.dead_letter_queue}) if served else {}
        for queue, count in waiting.items():
            found = f"{count:,} job{'s wait' if count > 1 else ' waits'} in queue {queue!r}"
            why = "neither these settings nor a pool here serve it, and none of its jobs is running"
            mend = f"add {queue!r} to `queues`, or start a pool that serves it"
            yield Finding(CHECK, Level.WARNING, found, why, mend)
        if handlers and backend.capabilities.lists_live:
            yield from _lacking(backend, settings.queue_names, {info.name for info in handlers})


def _lacking(backend: QueueBackend, queues: Collection[str], known: Collection[str]) -> Iterator[Finding]:
    """Yield the queues of these settings whose first jobs have handlers that the app lacks."""
    for queue in queues:
        page = backend.list_messages(MessageFilter(queue=queue, states=UNHELD), limit=FIRST_JOBS, largest=0)
        if names := {message.handler for message in page} - {*known, ""}:
            found = f"jobs wait in queue {queue!r} whose handlers the app lacks: {listed(sorted(names))}"
            why = "they are dead after `unknown_handler_grace` in a pool, unless another pool has them"
            mend = "name the app that has them (--app), or keep a former name as an alias (docs/handlers.md)"
            yield Finding(CHECK, Level.WARNING, found, why, mend)
