"""Checks of the broker: that it answers, that it can do what is asked of it, its settings, its clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding, Level
from jobpool.broker.opening import missing_database, open_backend, redact
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.master.run import queues_of, unmet
from jobpool.message.units import format_duration
from jobpool.settings import Settings

FIT = "broker.fit"

USELESS = "no pool starts with this"

SKEW_TOLD_S = 1.0
SKEW_BAD_S = 5.0  # seconds between two clocks: from these on a warning, and a problem


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield every finding about the broker; no answer is a finding too."""
    try:
        if missing := missing_database(settings.backend):
            told = f"{missing.partition(':')[0]}, so it was not looked at: `jobpool init --broker-only` makes it"
            yield Finding("broker", Level.NOTE, told)
            return
        with closing(open_backend(settings.backend)) as backend:
            yield from _ask(backend, settings)
    except JobpoolError as error:
        why, mend = "nothing can be enqueued or fetched", "mend that, then run `jobpool doctor` again"
        yield Finding("broker", Level.PROBLEM, str(error), why, mend)  # the error names the way


def _ask(backend: QueueBackend, settings: Settings) -> Iterator[Finding]:
    where = redact(settings.backend)
    if not backend.capabilities.leases:
        why = "it runs jobs as they are enqueued, so no pool can serve it"
        mend = "use sqlite:///jobpool.db, or a broker with a server"
        yield Finding("broker", Level.PROBLEM, f"{where} keeps no messages", why, mend)
        return
    backend.prepare()
    backend.ping()
    yield Finding("broker", Level.OK, f"{where} answers")
    # First: a broker that lists no queues can look only at those it was told.
    fits = Finding(FIT, Level.OK, f"{backend.scheme}:// can do what the settings ask of it")
    yield from list(_lacking(settings, backend)) or [fits]
    yield from _worth_knowing(settings, backend)
    yield from _paused(backend)
    yield from backend.diagnose()
    before = time.time()
    there = backend.broker_time()
    after = time.time()
    yield judge_skew(None if there is None else there - (before + after) / 2, (after - before) / 2)


def _lacking(pool: Settings, backend: QueueBackend) -> Iterator[Finding]:
    """Yield capabilities that are asked for and lacking, and queues that must have been made, and are missing.

    Raises BackendUnavailable. Blocks for a round trip a queue where queues must have been made.
    """
    for sentence in unmet(pool, backend):
        found, _, mend = sentence.partition(": ")
        yield Finding(FIT, Level.PROBLEM, found, USELESS, mend)
    for queue in () if backend.capabilities.makes_queues else queues_of(pool):
        try:
            backend.stats(queue)
        except BackendUnavailable:
            raise
        except JobpoolError as error:
            yield Finding(FIT, Level.PROBLEM, str(error), USELESS, f"create {queue!r} at the broker, or name another")


def _worth_knowing(pool: Settings, backend: QueueBackend) -> Iterator[Finding]:
    can = backend.capabilities
    if not can.key_store:
        without = "idempotency keys, limits, single instances, history = 'table' and rollups"
        yield Finding(FIT, Level.NOTE, f"{backend.scheme}:// keeps no keys, so there are no {without}")
    if not can.priorities:
        yield Finding(FIT, Level.NOTE, f"{backend.scheme}:// knows no priorities: jobs run in the order they came in")
    if 0 < pool.retry.delay(1) < can.delay_resolution:
        rounded = f"{can.delay_resolution:g} s"
        yield Finding(FIT, Level.NOTE, f"delays of retries are rounded up to {rounded} at {backend.scheme}://")


def _paused(backend: QueueBackend) -> Iterator[Finding]:
    """Yield the queues that somebody has paused, and may have forgotten."""
    for queue, found in control.read(backend).paused.items() if backend.has_control else ():
        since = format_duration(max(0.0, backend.control_time() - found.since))
        told = f"queue {queue!r} is paused, for {since} now" + (f": {found.reason}" if found.reason else "")
        yield Finding("broker.paused", Level.WARNING, told, "no pool fetches its jobs", f"jobpool resume {queue}")


def judge_skew(ahead: float | None, blur: float) -> Finding:
    """Judge the seconds by which the broker's clock is `ahead` (None: it has none), and `blur`, how far off that is."""
    if ahead is None:
        return Finding("broker.clock", Level.OK, "the broker tells no clock of its own: this machine's counts")
    found = f"the broker's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    off = abs(ahead) - blur
    if off <= SKEW_TOLD_S:
        return Finding("broker.clock", Level.OK, found)
    why = "jobs with a time (scheduled_at, expires_in) are run, or thrown away, that much too early or too late"
    level = Level.PROBLEM if off > SKEW_BAD_S else Level.WARNING
    return Finding("broker.clock", level, found, why, "run an NTP client on both machines")
