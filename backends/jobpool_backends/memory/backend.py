"""`MemoryBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.opening import redact
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import (
    REMEMBER_CALLS,
    Capabilities,
    Existing,
    Message,
    MessageFilter,
    NewMessage,
    QueueStats,
    Reaped,
    ReapPolicy,
    State,
    Verb,
)
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool.message.lease import JobLease, make_lease
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.memory.checks import PLACE
from jobpool_backends.memory.claims import MemoryClaims
from jobpool_backends.memory.keys import MemoryKeys
from jobpool_backends.memory.store import Settler, Store
from jobpool_backends.memory.values import Entry, Expiring, judge, shown
from jobpool_backends.options import DEAD_CAPS, read_options, split_query, take_caps
from jobpool_backends.shared import (
    MICRO,
    TOUCHABLE,
    DeadCaps,
    delay_micros,
    micros,
    more_than,
)

REAP_LIMIT = 1000
LONGEST_SLEEP = 0.1
"""Seconds after which a waiter looks again: a manual clock may have been turned, which wakes nobody."""


class MemoryBackend(QueueBackend):
    """Messages in this process's memory: two that are opened share nothing. `close` only wakes the threads that wait.

    Args:
        signer: Signs what is enqueued; None = unsigned.
        clock: Tells all times; None = the machine's.
        caps: Bounds on the dead letters of each queue.
    """

    scheme: ClassVar[str] = "memory"
    capabilities: ClassVar[Capabilities] = Capabilities(key_store=True)

    def __init__(
        self, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None, caps: DeadCaps | None = None
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        self._changed = threading.Condition(threading.Lock())
        self._store = Store(caps or DeadCaps())
        self._settler = Settler(self._store)
        self._keys = MemoryKeys(self._store, self.clock, self._changed)
        self._claims = claims = MemoryClaims(self._store, self.clock, self._changed)
        self._tidy = claims.tidy
        self._inspector = inspector = _Inspector(self._store, self.clock, self._changed)
        self._evicted = inspector.evicted
        self._closers = (self._wake,)
        self._calls: Expiring[list[Settled]] = Expiring()
        self._fetches: Expiring[list[int]] = Expiring()
        self._random = random.SystemRandom()
        self._closings = 0

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        address, found = split_query(url)
        if address.lower() != "memory://":
            raise ConfigurationError(f"{redact(url)!r} is refused: write memory:// and nothing behind it but options")
        options.pop("timeout", None)  # no call here waits for anything
        return cls(caps=take_caps(read_options(cls.scheme, found | options, DEAD_CAPS)), **common)

    def _wake(self) -> None:
        with self._changed:
            self._closings += 1
            self._changed.notify_all()

    def _wall(self) -> int:
        return micros(self.clock.wall())

    # --- producing ---------------------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing:
        with self._changed:
            existing = self._store.add(messages, self._wall())
            self._changed.notify_all()
        return existing

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
            taken = self._store.take(queue, limit, micros(ttl), call, micros(boot), now)
            if taken:
                self._fetches.put(call, [entry.seq for entry in taken], now + micros(REMEMBER_CALLS))
            expires_at = boot + ttl
            return [self._lease(entry, expires_at) for entry in taken]

    def _held(self, seq: int, call: str, boot: int) -> Entry | None:
        entry = self._store.entries.get(seq)
        if entry is None or entry.state is not State.LEASED or entry.fetched_by != call or boot >= entry.deadline:
            return None
        return entry

    def _lease(self, entry: Entry, expires_at: float) -> JobLease:
        return make_lease(
            entry.id,
            entry.queue,
            entry.body if len(entry.body) <= MAX_BODY_BYTES else OVERSIZED,
            entry.seq,
            entry.owner,
            expires_at,
            self.scheme,
            entry.attempts,
            entry.crashes,
            entry.deliveries,
            entry.enqueued_at / MICRO,
            entry.begun,
        )

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        give_up = time.monotonic() + timeout
        with self._changed:
            closings = self._closings
            while self._closings == closings:
                now = self._wall()
                for name in queues:
                    if self._store.has_ready(name, now):
                        return name
                remaining = give_up - time.monotonic()
                if remaining <= 0:
                    return None
                due = self._store.next_due(queues)
                until_due = LONGEST_SLEEP if due is None else (due - now) / MICRO
                self._changed.wait(min(remaining, until_due, LONGEST_SLEEP))
        return None

    # --- settling ----------------------------------------------------------------------------------

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        with self._changed:
            now = self._wall()
            known = self._calls.get(call_id, now)
            if known is not None:
                return [Settled.ALREADY if answer is Settled.OK else answer for answer in known]
            boot = micros(self.clock.boot())
            answers = []
            for place, (lease, settlement) in enumerate(settlements):
                entry = self._entry(lease)
                answer = judge(entry, lease, boot)
                if entry is not None and answer is Settled.OK:
                    self._settler.settle(entry, lease, settlement, brought.get(place, ()), boot, now)
                answers.append(answer)
            self._calls.put(call_id, answers, now + micros(REMEMBER_CALLS))
            self._changed.notify_all()
        return answers

    def _entry(self, lease: JobLease) -> Entry | None:
        return self._store.entries.get(lease.token)  # type: ignore[call-overload, no-any-return]

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        boot = self.clock.boot()
        with self._changed:
            return [self._renew_one(lease, boot, ttl) for lease in leases]

    def _renew_one(self, lease: JobLease, boot: float, ttl: float) -> JobLease | None:
        entry = self._entry(lease)
        if entry is None or not judge(entry, lease, micros(boot)):
            return None
        self._store.hold(entry, micros(ttl), micros(boot), self._wall())
        return replace(lease, expires_at=boot + ttl)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        with self._changed:
            if queue not in self._store.queues:
                return []
            self._tidy(queue)
            boot = micros(self.clock.boot())
            since = boot - more_than(visibility_timeout) if visibility_timeout is not None else None
            expired = [
                entry
                for entry in self._store.queues[queue].leased.values()
                if entry.deadline <= boot or (since is not None and entry.held_since <= since)
            ]
            expired.sort(key=lambda entry: (entry.deadline, entry.seq))
            reaped = [self._recover(entry, policy) for entry in expired[:REAP_LIMIT]]
            self._store.cap(queue, self._wall())
            self._changed.notify_all()
            return reaped

    def _recover(self, entry: Entry, policy: ReapPolicy) -> Reaped:
        now = self._wall()
        long_ago = entry.last_crash is not None and now - entry.last_crash > micros(policy.window)
        entry.crashes = 1 if long_ago else entry.crashes + 1
        entry.last_crash = now
        entry.cause = entry.forfeited or "lease expired"
        entry.forfeited = ""
        reaped = Reaped(entry.id, entry.queue, entry.crashes, entry.cause, policy.is_over(entry.crashes))
        if reaped.dead:
            self._store.bury(entry, "crash-limit", None, now)
        else:
            delay = self._random.uniform(0.0, policy.ceiling(entry.crashes))
            self._store.place(entry, now + delay_micros(delay), now)
        return reaped

    def _bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        touch = {Verb.DELETE: self._store.remove, Verb.RETRY: self._store.retry, Verb.RESUME: self._store.resume}[verb]
        with self._changed:
            now = self._wall()
            matching = (entry for entry in self._store.matching(where, now) if entry.state in TOUCHABLE[verb])
            found = list(islice(matching, limit))
            for entry in found:
                touch(entry, now)
            self._changed.notify_all()
            return len(found)

    def diagnose(self) -> list[Finding]:
        """Report that nothing is kept."""
        return [PLACE]


class _Inspector:
    """The part that looks. Each call walks over the messages: a backend for tests."""

    def __init__(self, store: Store, clock: Clock, lock: threading.Condition) -> None:
        self._store = store
        self._clock = clock
        self._lock = lock

    def stats(self, queue: str) -> QueueStats:
        with self._lock:
            now = micros(self._clock.wall())
            if queue not in self._store.queues:
                return QueueStats()
            known = self._store.queues[queue]
            self._store.tend(known, now)
            oldest = self._store.oldest(known)
            age = max(0, now - oldest.enqueued_at) / MICRO if oldest else None
            waiting, delayed, leased, _ = known.jobs.counts.values()
            posted = sum(known.posts.counts.values()) - known.posts.counts[State.DEAD]
            return QueueStats(waiting, delayed, leased, known.count(State.DEAD), age, posted=posted)

    def evicted(self, queue: str) -> int:
        with self._lock:
            return self._store.queues[queue].evicted if queue in self._store.queues else 0

    def queues(self) -> list[str]:
        with self._lock:
            for queue in self._store.queues.values():
                self._store.tend(queue, micros(self._clock.wall()))
            return sorted(name for name, queue in self._store.queues.items() if queue.count(*State))

    def page(self, where: MessageFilter, after: int, limit: int) -> list[Message]:
        with self._lock:
            boot = micros(self._clock.boot())
            matching = self._store.matching(where, micros(self._clock.wall()))
            return [shown(entry, boot) for entry in islice((entry for entry in matching if entry.seq > after), limit)]

    def count(self, where: MessageFilter, cap: int) -> int:
        with self._lock:
            return sum(1 for _ in islice(self._store.matching(where, micros(self._clock.wall())), cap))

    def inspect(self, ident: str) -> Message | None:
        with self._lock:
            entry = self._store.by_id.get(ident)
            if entry is not None:
                self._store.tend(self._store.queues[entry.queue], micros(self._clock.wall()))
                entry = self._store.by_id.get(ident)
            return shown(entry, micros(self._clock.boot())) if entry else None
