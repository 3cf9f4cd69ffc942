"""`MemoryBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from jobpool.broker import parts
from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding, Level
from jobpool.broker.opening import redact
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import (
    REAP_LIMIT,
    REMEMBER_CALLS,
    Capabilities,
    Edit,
    Edited,
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
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.memory.claims import MemoryClaims
from jobpool_backends.memory.keys import MemoryKeys
from jobpool_backends.memory.store import Store
from jobpool_backends.memory.values import Entry, Expiring, Turn, judge, shown
from jobpool_backends.options import DEAD_CAPS, read_options, split_query, take_caps
from jobpool_backends.shared import MICRO, DeadCaps, delay_micros, micros, more_than

LONGEST_SLEEP = 0.1  # seconds until a waiter looks again: a manual clock may have been turned, which wakes nobody


class MemoryBackend(QueueBackend):
    """Messages in this process's memory: two that are opened share nothing. After `close` nobody waits for results.

    `clock` tells all times; `caps` bound the dead letters of each queue.
    """

    scheme: ClassVar[str] = "memory"
    capabilities: ClassVar[Capabilities] = Capabilities(key_store=True)

    def __init__(
        self, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None, caps: DeadCaps | None = None
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        self._turn = turn = Turn(self.clock)
        self._store = store = Store(turn, caps or DeadCaps())
        self._keys = MemoryKeys(turn, store)
        self._claims = claims = MemoryClaims(turn, store)
        self._tidy = claims.tidy
        self._inspector = self._results = inspector = _Inspector(turn, store)
        self._batches = store.batches
        self._evicted = inspector.evicted
        self._closers = (self._wake,)
        self._calls: Expiring[list[Settled]] = Expiring()
        self._edit_calls: Expiring[list[Edited]] = Expiring()
        self._fetches: Expiring[list[int]] = Expiring()
        self._random = random.SystemRandom()

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        address, found = split_query(url)
        if address.lower() != "memory://":
            raise ConfigurationError(f"{redact(url)!r} is refused: write memory:// and nothing behind it but options")
        options.pop("timeout", None)  # no call here waits for anything
        return cls(caps=take_caps(read_options(cls.scheme, found | options, DEAD_CAPS)), **common)

    def _wake(self) -> None:
        with self._turn.step():
            self._turn.closings += 1

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing:
        with self._turn.step():
            return self._store.add(messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        call = f"{queue}:{fetch_id}"
        with self._turn.step():
            known = self._fetches.get(call, self._turn.now)
            if known is not None:
                entries = self._store.entries
                return [self._lease(entry) for seq in known if (entry := entries.get(seq)) and self._holds(call, entry)]
            taken = self._store.take(queue, limit, micros(ttl), call)
            if taken:
                self._fetches.put(call, [entry.seq for entry in taken], self._turn.now + micros(REMEMBER_CALLS))
            return [self._lease(entry) for entry in taken]

    def _holds(self, call: str, entry: Entry) -> bool:
        return entry.state is State.LEASED and entry.fetched_by == call and self._turn.boot < entry.deadline

    def _lease(self, entry: Entry) -> JobLease:
        return JobLease(
            entry.id,
            entry.queue,
            entry.body if len(entry.body) <= MAX_BODY_BYTES else OVERSIZED,
            entry.seq,
            entry.owner,
            entry.deadline / MICRO,
            self.scheme,
            entry.attempts,
            entry.crashes,
            entry.deliveries,
            entry.enqueued_at / MICRO,
            entry.begun,
        )

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        give_up = time.monotonic() + timeout
        with self._turn.step():
            closings = self._turn.closings
            while self._turn.closings == closings:
                for name in queues:
                    if self._store.has_ready(name):
                        return name
                remaining = give_up - time.monotonic()
                if remaining <= 0:
                    return None
                due = self._store.next_due(queues)
                until_due = LONGEST_SLEEP if due is None else (due - self._turn.now) / MICRO
                self._turn.wait(min(remaining, until_due, LONGEST_SLEEP))
        return None

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        with self._turn.step():
            known = self._calls.get(call_id, self._turn.now)
            if known is not None:
                return [Settled.ALREADY if answer is Settled.OK else answer for answer in known]
            answers = []
            for place, (lease, settlement) in enumerate(settlements):
                entry = self._store.entry(lease)
                answer = judge(entry, lease, self._turn.boot)
                if entry and answer is Settled.OK:
                    self._store.settle(entry, lease, settlement, brought.get(place, ()))
                answers.append(answer)
            self._calls.put(call_id, answers, self._turn.now + micros(REMEMBER_CALLS))
        return answers

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        renewed: list[JobLease | None] = []
        with self._turn.step():
            for lease in leases:
                entry = self._store.entry(lease)
                if entry and judge(entry, lease, self._turn.boot):
                    entry.hold(micros(ttl), self._turn)
                    renewed.append(replace(lease, expires_at=entry.deadline / MICRO))
                else:
                    renewed.append(None)
        return renewed

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        with self._turn.step():
            if queue not in self._store.queues:
                return []
            known, boot = self._tidy(queue), self._turn.boot
            since = boot - more_than(visibility_timeout) if visibility_timeout is not None else None
            expired = [
                entry
                for entry in known.leased.values()
                if entry.deadline <= boot or (since is not None and entry.held_since <= since)
            ]
            expired.sort(key=lambda entry: (entry.deadline, entry.seq))
            reaped = [self._recover(entry, policy) for entry in expired[:REAP_LIMIT]]
            self._store.cap(known)
            return reaped

    def _recover(self, entry: Entry, policy: ReapPolicy) -> Reaped:
        now = self._turn.now
        long_ago = entry.last_crash is not None and now - entry.last_crash > micros(policy.window)
        entry.crashes = 1 if long_ago else entry.crashes + 1
        entry.last_crash = now
        entry.cause = entry.forfeited or "lease expired"
        entry.forfeited = ""
        reaped = Reaped(entry.id, entry.queue, entry.crashes, entry.cause, policy.is_over(entry.crashes))
        if reaped.dead:
            self._store.bury(entry, "crash-limit")
        else:
            delay = self._random.uniform(0.0, policy.ceiling(entry.crashes))
            self._store.place(entry, now + delay_micros(delay))
        return reaped

    def _bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        store = self._store
        touch = {"delete": store.remove, "retry": store.retry, "resume": store.resume, "cancel": store.cancel}[verb]
        with self._turn.step():
            matching = (one for one in store.matching(where) if one.handler or verb is not Verb.CANCEL)
            found = list(islice(matching, limit))
            for entry in found:
                touch(entry)
            return len(found)

    def _edits(self, edits: Sequence[Edit], call_id: str) -> list[Edited]:
        with self._turn.step():
            answers = self._edit_calls.get(call_id, self._turn.now)
            if answers is None:
                answers = [self._store.edit(edit) for edit in edits]
                self._edit_calls.put(call_id, answers, self._turn.now + micros(REMEMBER_CALLS))
            return answers

    def diagnose(self) -> list[Finding]:
        """Report that nothing is kept."""
        found, why = "memory:// keeps its messages in this process", "they end with it, and no other process sees them"
        mend = "use sqlite:///jobpool.db; memory:// is for tests"
        return [Finding("memory.place", Level.PROBLEM, found, why, mend)]


class _Inspector(parts.Inspector):
    """The part that looks, for messages and for results. Each call walks over the messages: a backend for tests."""

    def __init__(self, turn: Turn, store: Store) -> None:
        self._turn = turn
        self._store = store

    def stats(self, queue: str) -> QueueStats:
        with self._turn.step():
            if queue not in self._store.queues:
                return QueueStats()
            known = self._store.queues[queue]
            self._store.sweep(known)
            oldest = self._store.oldest(known)
            age = max(0, self._turn.now - oldest.enqueued_at) / MICRO if oldest else None
            waiting, delayed, leased, _ = known.jobs.counts.values()
            posted = sum(known.posts.counts.values()) - known.posts.counts[State.DEAD]
            return QueueStats(waiting, delayed, leased, known.count(State.DEAD), age, posted=posted)

    def evicted(self, queue: str) -> int:
        with self._turn.step():
            return self._store.queues[queue].evicted if queue in self._store.queues else 0

    def queues(self) -> list[str]:
        with self._turn.step():
            for queue in self._store.queues.values():
                self._store.sweep(queue)
            return sorted(name for name, queue in self._store.queues.items() if queue.count(*State))

    def page(self, where: MessageFilter, after: int, limit: int, _largest: int = 0) -> list[Message]:
        with self._turn.step(looks=True):
            matching = (entry for entry in self._store.matching(where) if entry.seq > after)
            return [shown(entry, self._turn.boot) for entry in islice(matching, limit)]

    def count(self, where: MessageFilter, cap: int) -> int:
        with self._turn.step():
            return sum(1 for _ in islice(self._store.matching(where), cap))

    def get(self, idents: Sequence[str]) -> dict[str, bytes]:
        with self._turn.step(looks=True):
            found = {ident: self._store.results.get(ident, self._turn.now) for ident in idents}
        return {ident: record for ident, record in found.items() if record is not None}

    def wait(self, idents: Sequence[str], timeout: float) -> None:
        with self._turn.step(looks=True):
            if self._turn.closings:
                raise BackendUnavailable("memory:// was closed here: open the backend again")
            live = (self._store.by_id.get(ident) for ident in idents)
            if all(entry is not None and entry.state is not State.DEAD for entry in live):
                self._turn.wait(min(timeout, LONGEST_SLEEP))
