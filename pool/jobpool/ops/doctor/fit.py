"""Checks whether the broker can do what the settings ask of it."""

from __future__ import annotations

from collections.abc import Iterator

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding, Level
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.master.compatibility import queues_of, unmet
from jobpool.settings import Settings

CHECK = "broker.fit"

USELESS = "no pool starts with this"


def judge(settings: Settings, backend: QueueBackend) -> Iterator[Finding]:
    """Yield the capabilities that are asked for and lacking, and other notable facts.

    Raises BackendUnavailable. Blocks for a round trip a queue where queues must have been made.
    """
    bad = [*_lacking(settings, backend), *_missing(settings, backend)]
    yield from bad or [Finding(CHECK, Level.OK, f"{backend.scheme}:// can do what the settings ask of it")]
    yield from _worth_knowing(settings, backend)


def _lacking(pool: Settings, backend: QueueBackend) -> Iterator[Finding]:
    for sentence in unmet(pool, backend):
        found, _, mend = sentence.partition(": ")
        yield Finding(CHECK, Level.PROBLEM, found, USELESS, mend)


def _missing(pool: Settings, backend: QueueBackend) -> Iterator[Finding]:
    """Yield queues that must have been made, and are missing."""
    if backend.capabilities.makes_queues:
        return
    for queue in queues_of(pool):
        try:
            backend.stats(queue)
        except BackendUnavailable:
            raise
        except JobpoolError as error:
            yield Finding(CHECK, Level.PROBLEM, str(error), USELESS, f"create {queue!r} at the broker, or name another")


def _worth_knowing(pool: Settings, backend: QueueBackend) -> Iterator[Finding]:
    can = backend.capabilities
    if not can.key_store:
        without = "idempotency keys, limits, single instances, history = 'table' and rollups"
        yield Finding(CHECK, Level.NOTE, f"{backend.scheme}:// keeps no keys, so there are no {without}")
    if not can.priorities:
        yield Finding(CHECK, Level.NOTE, f"{backend.scheme}:// knows no priorities: jobs run in the order they came in")
    if 0 < pool.retry.delay(1) < can.delay_resolution:
        rounded = f"{can.delay_resolution:g} s"
        yield Finding(CHECK, Level.NOTE, f"delays of retries are rounded up to {rounded} at {backend.scheme}://")
