"""Control by people: pauses of queues, drains of pools and cancels of jobs, and the records of pools.

Requests are records in a key store, which every pool reads twice a second. A job that waits is cancelled in one step of
its broker (`Verb.CANCEL`). For one that is leased a mark is left, and its pool abandons it: a step that is fenced by
the lease. The mark holds for this message in all its deliveries, until one of them is settled.

The key store is the broker's own, or one that `?state=URL` lends it (`QueueBackend.control_keys`). Records outlive
pools and, where messages do, the broker. Each function blocks for a round trip or two. It raises `Unsupported` where
there is no key store, and `BackendUnavailable`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import json, structs

from jobpool.broker.filters import pages
from jobpool.broker.key_store import all_records, read_record
from jobpool.broker.values import LIVE, UNHELD, Message, MessageFilter, State, Verb
from jobpool.errors import InvalidJob, Unsupported
from jobpool.message.batches import BatchStatus
from jobpool.message.guards import LONGEST_KEPT
from jobpool.message.lease import JobLease
from jobpool.message.names import check_queue, storable
from jobpool.message.settlement import CANCELLED
from jobpool.message.units import check_number

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend

ASKED = "jobpool.control"  # the space of what people ask: a key is a kind, a colon and a name
PAUSE, DRAIN, CANCEL = "pause:", "drain:", "cancel:"
MARKED_S = 86400.0  # seconds for which a mark is kept that nobody removes
CANCEL_WAIT_S = 10.0  # seconds for which a cancel waits for the pools' answers, unless something else is said
KNOWN_AFTER_S = 1.0  # seconds after which all pools have read what is asked
CANCEL_LOOK_S = 0.05  # seconds between two looks meanwhile
SAME_TIME_S = 0.001  # two times of an enqueue that differ by less are the same
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


class Cancel(StrEnum):
    """The answer to the cancel of a job."""

    CANCELLED = "cancelled"
    ALREADY = "already cancelled"
    ENDED = "ended first"
    """It succeeded or was removed before it could be cancelled."""
    DEAD = "dead already"
    """It is a dead letter for another reason, perhaps only since it was asked for."""
    UNKNOWN = "unknown"
    """It is done and gone, or never was."""
    CLAIMED = "claimed"
    """A claim holds it, or it was posted: it is not a job that a pool could run."""
    ASKED = "asked"
    """Its pool has not answered in time: it is cancelled as soon as a pool reads this, if it does not succeed first."""


@dataclass(frozen=True, slots=True)
class CancelMark:
    """A request to cancel one message."""

    enqueued_at: float = 0.0  # Unix time, which tells it from a later message with its id; 0 = of any
    enqueued_by: float = 0.0  # Unix time, of a mark for whatever has the id: it is not for a later one; 0 = it is

    def is_for(self, lease: JobLease) -> bool:
        is_same = not self.enqueued_at or abs(lease.enqueued_at - self.enqueued_at) < SAME_TIME_S
        is_later = self.enqueued_by and lease.enqueued_at > self.enqueued_by
        return is_same and not is_later


@dataclass(frozen=True, slots=True)
class PoolRequests:
    """All that people ask of pools now."""

    paused: dict[str, Pause] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)  # ids of pools
    cancels: dict[str, CancelMark] = field(default_factory=dict)  # by the ids of messages


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
    backend.control_keys.put_records(ASKED, {PAUSE + queue: json.encode(made)}, seconds)
    return made


def resume(backend: QueueBackend, queue: str) -> bool:
    """Let pools fetch from a queue again; return whether it was paused."""
    return _lift(backend, PAUSE + check_queue(queue))


def _lift(backend: QueueBackend, key: str) -> bool:
    """Take back what was asked; return whether it was."""
    was_asked = backend.control_keys.get_record(ASKED, key) is not None
    backend.control_keys.delete_records(ASKED, [key])
    return was_asked


def read(backend: QueueBackend) -> PoolRequests:
    """Return all that is asked of pools now. One round trip for each thousand of records."""
    asked = PoolRequests()
    for key, value in all_records(backend.control_keys, ASKED):
        kind, colon, name = key.partition(":")
        if kind + colon == PAUSE:
            asked.paused[name] = read_record(value, Pause) or Pause(name)
        elif kind + colon == DRAIN:
            asked.drained.add(name)
        elif kind + colon == CANCEL and (mark := read_record(value, CancelMark)):
            asked.cancels[name] = mark
    return asked


def cancel(
    backend: QueueBackend, idents: Iterable[str], *, purge: bool = False, wait: float = CANCEL_WAIT_S
) -> dict[str, Cancel]:
    """Cancel jobs; return an answer each. Blocks until all are known, `wait` seconds (>= 0) at most.

    One that waits or is delayed becomes a dead letter, reason `cancelled`; with `purge` it is removed. One that runs is
    ended by its pool: see `Cancelled`. The id of a batch stands for all its members that have not ended. Its answer is
    `asked` while a pool has not answered for one of them, else `claimed` while a claim holds one. Safe to call again.
    """
    answers = _cancel_jobs(backend, idents, purge, wait)
    for ident, answer in answers.items():
        if answer is Cancel.UNKNOWN and (batch := backend.find_batch(ident)):
            answers[ident] = _cancel_batch(backend, batch, purge, wait)
    return answers


def _cancel_batch(backend: QueueBackend, batch: BatchStatus, purge: bool, wait: float) -> Cancel:
    """Close it, and cancel its members, those of nested batches first, until no more have joined."""
    if batch.has_ended:
        return Cancel.ALREADY if batch.stopped else Cancel.ENDED
    backend.batches.close(batch.id, stop=True)
    batch = backend.find_batch(batch.id) or batch  # others may have opened batches in it until then
    found = set()
    for ident in batch.nested:
        nested = backend.find_batch(ident)
        if nested and nested.parent == batch.id:  # not another one that has the id of a forgotten one
            found.add(_cancel_batch(backend, nested, purge, wait))
    tried: set[str] = set()  # members that no longer wait: they have ended, or run
    asked: set[str] = set()
    while members := set(backend.batches.members(batch.id, len(tried) + len(asked) + PAGE_RECORDS)) - asked:
        if fresh := list(members - tried)[:PAGE_RECORDS]:
            backend.bulk(MessageFilter(ids=tuple(fresh), states=UNHELD), _verb(purge), limit=len(fresh))
            tried = members.intersection((*tried, *fresh))
        else:  # nothing waits any more: wait once for all that run, and look if others joined meanwhile
            found.update(_cancel_jobs(backend, members, purge, wait).values())
            asked |= members
    return next((answer for answer in (Cancel.ASKED, Cancel.CLAIMED) if answer in found), Cancel.CANCELLED)


def _cancel_jobs(backend: QueueBackend, idents: Iterable[str], purge: bool, wait: float) -> dict[str, Cancel]:
    _check(backend, purge)
    cancels = _Cancels(backend, purge)
    left = dict.fromkeys(idents)
    answers: dict[str, Cancel] = {}
    give_up = time.monotonic() + wait
    while True:
        begun = time.monotonic()
        for ident in list(left):
            if (answer := cancels.step(ident)) is not None:
                answers[ident] = answer
                del left[ident]
        if not left or time.monotonic() >= give_up:
            break
        time.sleep(max(CANCEL_LOOK_S, time.monotonic() - begun))
    unmark(backend, [ident for ident in cancels.marked if ident in answers])
    return answers | dict.fromkeys(left, Cancel.ASKED)


def cancel_matching(
    backend: QueueBackend, where: MessageFilter, *, purge: bool = False, wait: float = CANCEL_WAIT_S
) -> Counter[Cancel]:
    """Cancel all jobs that match and are not dead; count them by their answers. Blocks as `cancel` and `pages`."""
    _check(backend, True)
    count: Counter[Cancel] = Counter()
    states = tuple(state for state in UNHELD if not where.states or state in where.states)
    for idents in _jobs(backend, structs.replace(where, states=states)) if states else ():
        changed = backend.bulk(MessageFilter(ids=idents, states=UNHELD), _verb(purge), limit=len(idents))
        count[Cancel.CANCELLED] += changed
    if where.states and State.LEASED not in where.states:
        return count
    running = [ident for idents in _jobs(backend, structs.replace(where, states=(State.LEASED,))) for ident in idents]
    return count + Counter(cancel(backend, running, purge=purge, wait=wait).values())


def _check(backend: QueueBackend, sees: bool) -> None:
    """Raise `Unsupported` for a request that has to see jobs, where the broker shows none that are not dead."""
    if sees and not backend.capabilities.keeps_records:
        cannot = "cancels no job that waits, and cannot tell which run (Capabilities.keeps_records)"
        raise Unsupported(f"{backend.scheme}:// {cannot}: cancel by id, without --purge, and with the option state=URL")


def _jobs(backend: QueueBackend, where: MessageFilter) -> Iterator[tuple[str, ...]]:
    """Yield the ids of the jobs that match, page by page; posted messages are left out."""
    for page in pages(backend, where, largest=0):
        if idents := tuple(message.id for message in page if message.handler):
            yield idents


class _Cancels:
    """One call's view of the jobs that it cancels. `marked`: the marks that were left, by the ids of their jobs."""

    def __init__(self, backend: QueueBackend, purge: bool) -> None:
        self._backend, self._purge = backend, purge
        self.marked: dict[str, CancelMark] = {}

    def step(self, ident: str) -> Cancel | None:
        """Do what can be done for it now; return the answer, or None: look again."""
        backend = self._backend
        message, can = backend.inspect(ident), backend.capabilities
        # It may be there unseen; or it is seen, and cannot be changed, and may be leased by another client.
        if (message is None and not can.finds_all) or (message and message.state in LIVE and not can.keeps_records):
            if ident not in self.marked:
                self._mark(ident, CancelMark(enqueued_by=round(backend.time.now(), 6)))  # rounded as enqueue times are
            return None
        if message is None:
            return Cancel.ENDED if ident in self.marked or backend.kept([ident]) else Cancel.UNKNOWN
        if message.state is State.DEAD:
            return self._dead(message)
        if message.claim is not None or not message.handler:
            return Cancel.CLAIMED
        if message.state is not State.LEASED:
            where = MessageFilter(ids=(ident,), states=UNHELD)
            return Cancel.CANCELLED if backend.bulk(where, _verb(self._purge), limit=1) else None
        if self.marked.get(ident) != (mark := CancelMark(message.enqueued_at)):  # a job that has moved is enqueued anew
            self._mark(ident, mark)
        return None

    def _mark(self, ident: str, mark: CancelMark) -> None:
        self._backend.control_keys.put_records(ASKED, {CANCEL + ident: json.encode(mark)}, MARKED_S)
        self.marked[ident] = mark

    def _dead(self, message: Message) -> Cancel:
        if message.reason != CANCELLED:
            return Cancel.DEAD
        if self._purge:
            where = MessageFilter(ids=(message.id,), states=(State.DEAD,), reason=CANCELLED)
            self._backend.bulk(where, Verb.DELETE, limit=1)
        return Cancel.CANCELLED if message.id in self.marked else Cancel.ALREADY


def _verb(purge: bool) -> Verb:
    return Verb.DELETE if purge else Verb.CANCEL


def unmark(backend: QueueBackend, idents: Iterable[str]) -> None:
    """Remove the marks of messages that need them no more."""
    backend.control_keys.delete_records(ASKED, [CANCEL + ident for ident in idents])


def unmark_dead(backend: QueueBackend, where: MessageFilter) -> None:
    """Remove the marks of these dead letters: one that is raised is to run. Blocks until pools know it."""
    marked = read(backend).cancels.keys()
    where = structs.replace(where, ids=tuple(marked & where.ids if where.ids else marked), states=(State.DEAD,))
    if where.ids and (dead := [ident for idents in _jobs(backend, where) for ident in idents]):
        unmark(backend, dead)
        time.sleep(KNOWN_AFTER_S)


def publish_pool(backend: QueueBackend, pool: PoolRecord) -> None:
    """Write the record of a pool, in place of the one before."""
    told = replace(pool, seen=backend.control_time())
    backend.control_keys.put_records(POOLS, {pool.id: json.encode(told)}, KEPT_S)


def pools(backend: QueueBackend) -> list[PoolRecord]:
    """Return all pools that have a record, the oldest first."""
    now = backend.control_time()
    found = [read_record(value, PoolRecord) for _, value in all_records(backend.control_keys, POOLS)]
    told = [replace(pool, silent=abs(now - pool.seen) > SILENT_AFTER_S) for pool in found if pool]
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
    return _lift(backend, DRAIN + pool)


def _seconds(until: Any, now: float) -> float:
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise InvalidJob("the end of a pause needs a time zone: write 2026-07-01T08:00+02:00")
        until = until.timestamp() - now
    if not 0 < check_number(until, "until") <= LONGEST_KEPT:
        raise InvalidJob("a pause ends in the future, a year from now at most")
    return float(until)
