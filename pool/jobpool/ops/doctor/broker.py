"""The broker: does it answer, what do its settings lose, what does its clock say."""

from __future__ import annotations

import time
from collections.abc import Iterator

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding, Level
from jobpool.broker.opening import open_backend, redact
from jobpool.errors import JobpoolError
from jobpool.ops.doctor import fit
from jobpool.settings import Settings

SKEW_TOLD = 1.0
SKEW_BAD = 5.0
"""Seconds between two clocks: from these on a warning, and a problem."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield every finding about the broker; no answer is a finding too."""
    try:
        backend = open_backend(settings.backend, timeout=settings.broker_timeout)
    except JobpoolError as error:
        yield _silent(error)
        return
    try:
        yield from _ask(backend, settings)
    except JobpoolError as error:
        yield _silent(error)
    finally:
        backend.close()


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
    yield from fit.judge(settings, backend)  # first: a broker that lists no queues can look only at those it was told
    yield from backend.diagnose()
    yield judge_skew(*_compare(backend))


def _compare(backend: QueueBackend) -> tuple[float | None, float]:
    """Return seconds by which the broker's clock is ahead of ours (None: it has none), and how far off that may be."""
    before = time.time()
    there = backend.broker_time()
    after = time.time()
    return None if there is None else there - (before + after) / 2, (after - before) / 2


def judge_skew(ahead: float | None, blur: float) -> Finding:
    """Judge the skew: `ahead`, of the broker's clock, in seconds; `blur`, half of the question's time."""
    if ahead is None:
        return Finding("broker.clock", Level.OK, "the broker tells no clock of its own: this machine's counts")
    found = f"the broker's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    off = abs(ahead) - blur
    if off <= SKEW_TOLD:
        return Finding("broker.clock", Level.OK, found)
    why = "jobs with a time (scheduled_at, expires_in) are run, or thrown away, that much too early or too late"
    level = Level.PROBLEM if off > SKEW_BAD else Level.WARNING
    return Finding("broker.clock", level, found, why, "run an NTP client on both machines")


def _silent(error: JobpoolError) -> Finding:
    why = "nothing can be enqueued or fetched"
    return Finding("broker", Level.PROBLEM, str(error), why, "start it, or mend the setting `backend`")
