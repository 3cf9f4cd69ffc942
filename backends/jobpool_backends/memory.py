"""`memory://`: the contract in its shortest form, in this process, on a clock that a test may turn.

It is what the other backends are compared with. One lock makes every step atomic. Each queue has a heap of sequence
numbers a priority, and a heap of what is delayed; both are cleaned lazily: an entry whose message has moved on is
skipped when it comes up. Nothing is kept when the process ends.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, ClassVar

from jobpool.backend import (
    ENQUEUE_MEMORY,
    REMEMBER_CALLS,
    Capabilities,
    Message,
    MessageFilter,
    NewMessage,
    QueueBackend,
    QueueStats,
    Reaped,
    ReapPolicy,
    State,
    Verb,
)
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError
from jobpool.lease import JobLease, make_lease
from jobpool.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool.signing import EnvelopeSigner
from jobpool_backends.shared import (
    MICRO,
    check_page,
    check_positive,
    contains,
    delay_micros,
    micros,
    read_cursor,
    refuse_options,
)

REAP_LIMIT = 1000
LONGEST_SLEEP = 0.1
"""Seconds after which a waiter looks again: a manual clock may have been turned, which wakes nobody."""


@dataclass(slots=True)
class _Entry:
    """One message. Times are microseconds; `deadline` and `held_since` on the boot clock, the others on the wall's."""

    seq: int
    id: str
    given: bool
    queue: str
    handler: str
    priority: int
    body: bytes
    enqueued_at: int
    available_at: int
    state: State = State.WAITING
    attempts: int = 0
    crashes: int = 0
    deliveries: int = 0
    owner: str = ""
    fetched_by: str = ""
    deadline: int = 0
    deadline_wall: int = 0
    held_since: int = 0
    forfeited: str = ""
    cause: str | None = None
    reason: str | None = None
    last_error: str | None = None
    died_at: int | None = None
    last_crash: int | None = None


@dataclass(slots=True)
class _Queue:
    """The order of one queue, and its counts."""

    ready: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    delayed: list[tuple[int, int]] = field(default_factory=list)
    leased: dict[int, _Entry] = field(default_factory=dict)
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))


class _Memory:
    """Remembers values by key for a fixed time, microseconds; the oldest are dropped in the order they came."""

    def __init__(self, lasts: float) -> None:
        self._lasts = micros(lasts)
        self._values: dict[str, Any] = {}
        self._ends: deque[tuple[int, str]] = deque()

    def put(self, key: str, value: Any, now: int) -> None:
        self._values[key] = value
        self._ends.append((now + self._lasts, key))

    def get(self, key: str, now: int) -> Any:
        ends = self._ends
        while ends and ends[0][0] <= now:
            self._values.pop(ends.popleft()[1], None)
        return self._values.get(key)


class MemoryBackend(QueueBackend):
    """Messages in this process's memory.

    Args:
        signer: Signs what is enqueued; None = unsigned.
        clock: Tells all times; None = the machine's.
    """

    scheme: ClassVar[str] = "memory"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None) -> None:
        super().__init__(signer=signer, clock=clock)
        self._changed = threading.Condition(threading.Lock())
        self._sequence = count(1)
        self._entries: dict[int, _Entry] = {}
        self._by_id: dict[str, _Entry] = {}
        self._queues: dict[str, _Queue] = defaultdict(_Queue)
        self._calls = _Memory(REMEMBER_CALLS)
        self._fetches = _Memory(REMEMBER_CALLS)
        self._ended = _Memory(ENQUEUE_MEMORY)
        self._random = random.SystemRandom()
        self._verbs: dict[type, Callable[[_Entry, Any, int], None]] = {
            Ack: self._ack,
            Nack: self._nack,
            Abandon: self._abandon,
            Release: self._release,
            Forfeit: self._forfeit,
        }

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
        runner: object = None,
        **options: object,
    ) -> MemoryBackend:
        """A new, empty backend for `memory://`; two of them share nothing.

        Raises:
            ConfigurationError: There is anything behind `memory://`, or an option.
        """
        del runner  # only sync:// has a use for one
        if url.lower() != "memory://":
            raise ConfigurationError(f"{url!r} is refused: write memory:// and nothing behind it")
        options.pop("timeout", None)  # no call here waits for anything
        refuse_options(cls.scheme, options)
        return cls(signer=signer, clock=clock)

    # --- producing ---------------------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> None:
        with self._changed:
            self._add(messages, self._wall())
            self._changed.notify_all()

    def _add(self, messages: Sequence[NewMessage], now: int) -> None:
        for new in messages:
            if new.id in self._by_id or (new.given and self._ended.get(new.id, now)):
                continue
            available = max(now, micros(new.due)) if new.due is not None else now
            seq = next(self._sequence)
            entry = _Entry(seq, new.id, new.given, new.queue, new.handler, new.priority, new.body, now, available)
            self._entries[seq] = self._by_id[new.id] = entry
            self._queues[new.queue].counts[State.WAITING] += 1
            self._place(entry, available, now)

    # --- consuming ---------------------------------------------------------------------------------

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        boot = self.clock.boot()
        call = f"{queue}:{fetch_id}"
        with self._changed:
            now = self._wall()
            known = self._fetches.get(call, now)
            if known is not None:
                held = (self._held(seq, call, micros(boot)) for seq in known)
                return [self._lease(entry, entry.deadline / MICRO) for entry in held if entry]
            taken = self._take(queue, limit, ttl, call, micros(boot), now)
            if taken:
                self._fetches.put(call, [entry.seq for entry in taken], now)
            expires_at = boot + ttl
            return [self._lease(entry, expires_at) for entry in taken]

    def _take(self, name: str, limit: int, ttl: float, call: str, boot: int, now: int) -> list[_Entry]:
        queue = self._queues[name]
        self._promote(queue, now)
        taken = list(islice(self._ready(queue), limit))
        prefix = secrets.token_hex(8)
        length = micros(ttl)
        for entry in taken:
            entry.state = State.LEASED
            entry.owner = f"{prefix}{entry.seq:016x}"
            entry.fetched_by = call
            entry.held_since = boot
            entry.deadline = boot + length
            entry.deadline_wall = now + length
            entry.deliveries += 1
            queue.leased[entry.seq] = entry
        queue.counts[State.WAITING] -= len(taken)
        queue.counts[State.LEASED] += len(taken)
        return taken

    def _ready(self, queue: _Queue) -> Iterator[_Entry]:
        """The waiting messages in order, each taken off its heap."""
        for priority in sorted(queue.ready):
            heap = queue.ready[priority]
            while heap:
                entry = self._entries.get(heappop(heap))
                if entry is not None:
                    yield entry

    def _promote(self, queue: _Queue, now: int) -> None:
        """Delayed messages that have fallen due are waiting."""
        delayed = queue.delayed
        while delayed and delayed[0][0] <= now:
            entry = self._entries.get(heappop(delayed)[1])
            if entry is not None:
                self._move(entry, State.WAITING)
                heappush(queue.ready[entry.priority], entry.seq)

    def _held(self, seq: int, call: str, boot: int) -> _Entry | None:
        entry = self._entries.get(seq)
        if entry is None or entry.state is not State.LEASED or entry.fetched_by != call or boot >= entry.deadline:
            return None
        return entry

    def _lease(self, entry: _Entry, expires_at: float) -> JobLease:
        return make_lease(
            entry.id,
            entry.queue,
            entry.body,
            entry.seq,
            entry.owner,
            expires_at,
            self.scheme,
            entry.attempts,
            entry.crashes,
            entry.deliveries,
            entry.enqueued_at / MICRO,
        )

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        give_up = time.monotonic() + timeout
        with self._changed:
            while True:
                now = self._wall()
                for name in queues:
                    if self._has_ready(name, now):
                        return name
                remaining = give_up - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(min(remaining, self._until_due(queues, now), LONGEST_SLEEP))

    def _has_ready(self, name: str, now: int) -> bool:
        queue = self._queues.get(name)
        if queue is None:
            return False
        self._promote(queue, now)
        return queue.counts[State.WAITING] > 0

    def _until_due(self, queues: Sequence[str], now: int) -> float:
        known = [self._queues[name].delayed for name in queues if name in self._queues]
        return min((delayed[0][0] - now for delayed in known if delayed), default=MICRO) / MICRO

    # --- settling ----------------------------------------------------------------------------------

    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        follow_ups = [
            [self.pack(definition) for definition in settlement.follow_ups] if type(settlement) is Ack else []
            for _, settlement in settlements
        ]
        with self._changed:
            now = self._wall()
            known = self._calls.get(call_id, now)
            if known is not None:
                return [Settled.ALREADY if answer is Settled.OK else answer for answer in known]
            boot = micros(self.clock.boot())
            answers = []
            for (lease, settlement), new in zip(settlements, follow_ups, strict=True):
                entry = self._entries.get(lease.token)  # type: ignore[call-overload]
                answer = _judge(entry, lease, boot)
                if answer is Settled.OK:
                    self._verbs[type(settlement)](entry, settlement, now)
                    self._add(new, now)
                answers.append(answer)
            self._calls.put(call_id, answers, now)
            self._changed.notify_all()
        return answers

    def _ack(self, entry: _Entry, ack: Ack, now: int) -> None:
        del ack
        self._remove(entry, now)

    def _nack(self, entry: _Entry, nack: Nack, now: int) -> None:
        entry.attempts += 1
        entry.last_error = nack.error if nack.error is not None else entry.last_error
        self._place(entry, now + delay_micros(nack.delay), now)

    def _abandon(self, entry: _Entry, abandon: Abandon, now: int) -> None:
        self._bury(entry, abandon.reason, abandon.error, now)

    def _release(self, entry: _Entry, release: Release, now: int) -> None:
        self._place(entry, now + delay_micros(release.delay), now)

    def _forfeit(self, entry: _Entry, forfeit: Forfeit, now: int) -> None:
        entry.deadline = micros(self.clock.boot())
        entry.deadline_wall = now
        entry.forfeited = forfeit.cause

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        boot = self.clock.boot()
        with self._changed:
            return [self._renew_one(lease, boot, ttl) for lease in leases]

    def _renew_one(self, lease: JobLease, boot: float, ttl: float) -> JobLease | None:
        entry = self._entries.get(lease.token)  # type: ignore[call-overload]
        if entry is None or _judge(entry, lease, micros(boot)) is not Settled.OK:
            return None
        entry.held_since = micros(boot)
        entry.deadline = entry.held_since + micros(ttl)
        entry.deadline_wall = self._wall() + micros(ttl)
        return replace(lease, expires_at=boot + ttl)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        with self._changed:
            boot = micros(self.clock.boot())
            since = boot - micros(visibility_timeout) if visibility_timeout is not None else None
            leased = self._queues[queue].leased.values() if queue in self._queues else ()
            expired = [
                entry for entry in leased if entry.deadline <= boot or (since is not None and entry.held_since <= since)
            ]
            expired.sort(key=lambda entry: (entry.deadline, entry.seq))
            reaped = [self._recover(entry, policy) for entry in expired[:REAP_LIMIT]]
            self._changed.notify_all()
            return reaped

    def _recover(self, entry: _Entry, policy: ReapPolicy) -> Reaped:
        now = self._wall()
        long_ago = entry.last_crash is not None and now - entry.last_crash > micros(policy.window)
        entry.crashes = 1 if long_ago else entry.crashes + 1
        entry.last_crash = now
        entry.cause = entry.forfeited or "lease expired"
        entry.forfeited = ""
        dead = policy.is_over(entry.crashes)
        if dead:
            self._bury(entry, "crash-limit", None, now)
        else:
            delay = self._random.uniform(0.0, policy.ceiling(entry.crashes))
            self._place(entry, now + delay_micros(delay), now)
        return Reaped(entry.id, entry.queue, entry.crashes, entry.cause, dead)

    # --- moving messages; the lock is held ---------------------------------------------------------

    def _wall(self) -> int:
        return micros(self.clock.wall())

    def _move(self, entry: _Entry, state: State) -> None:
        queue = self._queues[entry.queue]
        queue.counts[entry.state] -= 1
        queue.counts[state] += 1
        if entry.state is State.LEASED:
            del queue.leased[entry.seq]
        entry.state = state

    def _place(self, entry: _Entry, available_at: int, now: int) -> None:
        """To its place in the queue: waiting, or delayed until then."""
        entry.available_at = available_at
        queue = self._queues[entry.queue]
        if available_at > now:
            self._move(entry, State.DELAYED)
            heappush(queue.delayed, (available_at, entry.seq))
        else:
            self._move(entry, State.WAITING)
            heappush(queue.ready[entry.priority], entry.seq)

    def _bury(self, entry: _Entry, reason: str, error: str | None, now: int) -> None:
        self._move(entry, State.DEAD)
        entry.reason = reason
        entry.died_at = now
        entry.last_error = error if error is not None else entry.last_error

    def _remove(self, entry: _Entry, now: int) -> None:
        queue = self._queues[entry.queue]
        queue.counts[entry.state] -= 1
        queue.leased.pop(entry.seq, None)
        del self._entries[entry.seq], self._by_id[entry.id]
        if entry.given:
            self._ended.put(entry.id, True, now)

    # --- looking and tending -----------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Counts of one queue, O(1)."""
        with self._changed:
            now = self._wall()
            if queue not in self._queues:
                return QueueStats()
            known = self._queues[queue]
            self._promote(known, now)
            oldest = min((seq for heap in known.ready.values() if (seq := self._first(heap))), default=None)
            age = max(0, now - self._entries[oldest].enqueued_at) / MICRO if oldest else None
            waiting, delayed, leased, dead = (known.counts[state] for state in State)
            return QueueStats(waiting, delayed, leased, dead, age)

    def _first(self, heap: list[int]) -> int | None:
        while heap and heap[0] not in self._entries:
            heappop(heap)
        return heap[0] if heap else None

    def queues(self) -> list[str]:
        """The names of all queues that hold a message, sorted."""
        with self._changed:
            return sorted(name for name, queue in self._queues.items() if any(queue.counts.values()))

    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """One page in enqueue order. Walks over the messages before it: a backend for tests."""
        first = read_cursor(after)
        check_page(limit)
        with self._changed:
            found = (entry for entry in self._matching(where or MessageFilter()) if entry.seq > first)
            return [_message(entry) for entry in islice(found, limit)]

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """How many messages match, up to `cap`."""
        check_positive(cap, "cap")
        with self._changed:
            return sum(1 for _ in islice(self._matching(where), cap))

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages, oldest first; leased ones are never touched."""
        check_positive(limit, "limit")
        wanted = (State.DEAD,) if verb is Verb.RETRY else (State.WAITING, State.DELAYED, State.DEAD)
        with self._changed:
            found = list(islice((entry for entry in self._matching(where) if entry.state in wanted), limit))
            now = self._wall()
            for entry in found:
                self._retry(entry, now) if verb is Verb.RETRY else self._remove(entry, now)
            self._changed.notify_all()
            return len(found)

    def _retry(self, entry: _Entry, now: int) -> None:
        entry.attempts = entry.crashes = 0
        entry.last_error = entry.reason = entry.cause = entry.died_at = entry.last_crash = None
        self._place(entry, now, now)

    def inspect(self, ident: str) -> Message | None:
        """The message with this id, live or dead."""
        with self._changed:
            entry = self._by_id.get(ident)
            if entry is None:
                return None
            self._promote(self._queues[entry.queue], self._wall())
            return _message(entry)

    def _matching(self, where: MessageFilter) -> Iterator[_Entry]:
        now = self._wall()
        for queue in self._queues.values():
            self._promote(queue, now)
        return (entry for entry in self._entries.values() if _matches(entry, where, now))


def _judge(entry: _Entry | None, lease: JobLease, boot: int) -> Settled:
    """May this lease settle? The refusals in the order that the contract gives."""
    if entry is None or entry.state is not State.LEASED:
        return Settled.NOT_IN_FLIGHT
    if boot >= entry.deadline:
        return Settled.EXPIRED
    return Settled.OK if entry.owner == lease.owner_token else Settled.NOT_OWNER


def _matches(entry: _Entry, where: MessageFilter, now: int) -> bool:
    age = now - (entry.died_at if entry.died_at is not None else entry.enqueued_at)
    return (
        (where.queue is None or entry.queue == where.queue)
        and (where.handler is None or entry.handler == where.handler)
        and (not where.states or entry.state in where.states)
        and (where.reason is None or entry.reason == where.reason)
        and (where.older_than is None or age >= micros(where.older_than))
        and (where.newer_than is None or age <= micros(where.newer_than))
        and (not where.ids or entry.id in where.ids)
        and (where.text is None or contains(where.text, entry.body, entry.last_error, entry.cause, entry.forfeited))
    )


def _message(entry: _Entry) -> Message:
    return Message(
        id=entry.id,
        queue=entry.queue,
        state=entry.state,
        handler=entry.handler,
        priority=entry.priority,
        attempts=entry.attempts,
        crashes=entry.crashes,
        deliveries=entry.deliveries,
        enqueued_at=entry.enqueued_at / MICRO,
        available_at=entry.available_at / MICRO,
        body=entry.body,
        reason=entry.reason,
        last_error=entry.last_error,
        cause=entry.forfeited or entry.cause,
        died_at=entry.died_at / MICRO if entry.died_at is not None else None,
        expires_at=entry.deadline_wall / MICRO if entry.state is State.LEASED else None,
        cursor=str(entry.seq),
    )
