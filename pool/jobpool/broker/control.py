"""Control by people: pauses of queues and drains of pools, in a key store that every pool reads twice a second.

Pools keep records of themselves there, too.

The key store is the broker's own, or one that `?state=URL` lends it (`QueueBackend.control_keys`). Records outlive
pools and, where messages do, the broker. Each function blocks for a round trip or two. It raises `Unsupported` where
there is no key store, and `BackendUnavailable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import KeyStore
from jobpool.errors import InvalidJob
from jobpool.message.guards import LONGEST_KEPT
from jobpool.message.names import check_queue, storable
from jobpool.message.units import check_number

ASKED = "jobpool.control"  # the space of what people ask: a key is a kind, a colon and a name
PAUSE, DRAIN = "pause:", "drain:"
POOLS = "jobpool.pools"  # the space of the pools' own records, by their ids
TELL_EVERY_S = 10.0  # seconds between two writes of a pool's record
SILENT_AFTER_S = 3 * TELL_EVERY_S
KEPT_S = 86400.0  # seconds for which the record of a killed pool is kept
MAX_REASON_CHARS = 500
PAGE_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue from which no pool fetches. Times are Unix seconds on the broker's clock."""

    queue: str
    reason: str = ""
    since: float = 0.0
    until: float | None = None  # None = until a person resumes it, a year at most


@dataclass(frozen=True, slots=True)
class Asked:
    """All that people ask of pools now."""

    paused: dict[str, Pause] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)  # ids of pools


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """A pool, as it told of itself last. Times are Unix seconds on the broker's clock."""

    id: str  # minted at its start
    name: str
    host: str
    pid: int
    version: str
    state: str  # running, drained (by a person) or stopping
    queues: list[str]
    children: int
    busy: int
    lease_margin: float | None  # seconds until the first of its leases would end; None = it holds none
    started: float
    seen: float = 0.0
    silent: bool = False  # it has not told of itself for three periods


def pause(backend: QueueBackend, queue: str, reason: str = "", until: datetime | float | None = None) -> Pause:
    """Keep all pools from fetching from a queue; another pause of it takes the place of this one.

    `until`: an aware time, or seconds from now, a year at most; None = until `resume`. Raises `InvalidJob` for others.
    """
    now = backend.control_time()
    seconds = LONGEST_KEPT if until is None else _seconds(until, now)
    made = Pause(check_queue(queue), storable(reason)[:MAX_REASON_CHARS], now, None if until is None else now + seconds)
    backend.control_keys.put_records(ASKED, {PAUSE + queue: orjson.dumps(asdict(made))}, seconds)
    return made


def resume(backend: QueueBackend, queue: str) -> bool:
    """Let pools fetch from a queue again; return whether it was paused."""
    keys, key = backend.control_keys, PAUSE + check_queue(queue)
    was_paused = keys.get_record(ASKED, key) is not None
    keys.delete_records(ASKED, [key])
    return was_paused


def read(backend: QueueBackend) -> Asked:
    """Return all that is asked of pools now. One round trip for each thousand of records."""
    asked = Asked()
    for key, value in records(backend.control_keys, ASKED):
        kind, colon, name = key.partition(":")
        if kind + colon == PAUSE:
            asked.paused[name] = Pause(**orjson.loads(value))
        elif kind + colon == DRAIN:
            asked.drained.add(name)
    return asked


def tell(backend: QueueBackend, pool: PoolRecord) -> None:
    """Write the record of a pool, in place of the one before."""
    told = asdict(replace(pool, seen=backend.control_time()))
    backend.control_keys.put_records(POOLS, {pool.id: orjson.dumps(told)}, KEPT_S)


def pools(backend: QueueBackend) -> list[PoolRecord]:
    """Return all pools that have a record, the oldest first."""
    now = backend.control_time()
    found = [PoolRecord(**orjson.loads(value)) for _, value in records(backend.control_keys, POOLS)]
    told = [replace(pool, silent=now - pool.seen > SILENT_AFTER_S) for pool in found]
    return sorted(told, key=lambda pool: (pool.started, pool.id))


def forget(backend: QueueBackend, pool: str) -> None:
    """Remove the record of a pool that ends, and a request to drain it."""
    backend.control_keys.delete_records(POOLS, [pool])
    backend.control_keys.delete_records(ASKED, [DRAIN + pool])


def drain(backend: QueueBackend, pool: str) -> bool:
    """Let a pool fetch nothing more until `undrain`, or its end; return False for an unknown id."""
    if backend.control_keys.get_record(POOLS, pool) is None:
        return False
    backend.control_keys.put_records(ASKED, {DRAIN + pool: b""}, LONGEST_KEPT)
    return True


def undrain(backend: QueueBackend, pool: str) -> bool:
    """Let a pool fetch again; return whether it was drained."""
    keys = backend.control_keys
    was_drained = keys.get_record(ASKED, DRAIN + pool) is not None
    keys.delete_records(ASKED, [DRAIN + pool])
    return was_drained


def records(keys: KeyStore, space: str) -> Iterator[tuple[str, bytes]]:
    """Yield all records of a space, by key."""
    after = ""
    while page := keys.list_records(space, after=after, limit=PAGE_RECORDS):
        yield from page
        if len(page) < PAGE_RECORDS:
            return
        after = page[-1][0]


def _seconds(until: Any, now: float) -> float:
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise InvalidJob("the end of a pause needs a time zone: write 2026-07-01T08:00+02:00")
        until = until.timestamp() - now
    if not 0 < check_number(until, "until") <= LONGEST_KEPT:
        raise InvalidJob("a pause ends in the future, a year from now at most")
    return float(until)
