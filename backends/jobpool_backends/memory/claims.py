"""The part for claims and posted messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from threading import Condition

from jobpool.broker.claim_store import (
    CLAIM_LIMIT,
    MOST_LIFE,
    ClaimStats,
    ClaimStore,
    Deleted,
    HeldClaim,
    NewPost,
    QueueMessage,
)
from jobpool.broker.values import State
from jobpool.clock import Clock
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool_backends.memory.store import Store
from jobpool_backends.memory.values import Claim, Entry, Queue
from jobpool_backends.shared import MICRO, micros


class MemoryClaims(ClaimStore):
    """Claims of one store, under its lock. `now` is Unix time, `boot` CLOCK_BOOTTIME, both in microseconds."""

    def __init__(self, store: Store, clock: Clock, lock: Condition) -> None:
        self._store = store
        self._clock = clock
        self._lock = lock

    def tidy(self, name: str) -> tuple[Queue, int, int]:
        """Expire what is due in a queue; return the queue, boot time and Unix time. The caller holds the lock."""
        queue, boot, now = self._store.queues[name], micros(self._clock.boot()), micros(self._clock.wall())
        for ident, _ in queue.claim_ends.due(boot):
            self._end(queue, queue.claims[ident], now)
        self._store.tend(queue, now)
        self._lock.notify_all()
        return queue, boot, now

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        with self._lock:
            self._store.add_posts(queue, posts, micros(self._clock.wall()))

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        with self._lock:
            known, boot, now = self.tidy(queue)
            claim = known.claims.get(claim_id)
            if claim is None:
                found = list(islice(self._free(known, max_claims, now), limit))
                if not found:
                    return None
                claim = known.claims[claim_id] = Claim(claim_id)
                for entry in found:
                    self._store.move(entry, State.LEASED)
                    entry.owner, entry.fetched_by, entry.claim = claim_id, "", claim
                    entry.deliveries += 1
                    entry.claims += 1
                    claim.entries[entry.seq] = entry
                self._hold(known, claim, micros(ttl), micros(grace), boot, now)
            return _held(queue, claim, boot)

    def _free(self, queue: Queue, most: int, now: int) -> Iterator[Entry]:
        """Yield the messages that can be claimed, in order, each taken off its heap.

        Past `most` claims (0 = any) a message dies instead.
        """
        for entry in self._store.ready(queue.jobs, queue.posts):
            if 0 < most <= entry.claims:
                self._store.bury(entry, CLAIM_LIMIT, None, now)
            else:
                yield entry

    def _hold(self, queue: Queue, claim: Claim, ttl: int, grace: int, boot: int, now: int) -> None:
        """Let the claim end `ttl` from now, and its messages live at least `grace` longer."""
        claim.ttl, claim.grace, claim.since, claim.end = ttl, grace, boot, boot + ttl
        queue.claim_ends.put(claim.id, claim.end)
        enough = now + min(ttl + grace, micros(MOST_LIFE))
        for entry in claim.entries.values():
            self._store.hold(entry, ttl, boot, now)
            if entry.ends_at is not None:
                self._store.live_until(entry, max(entry.ends_at, enough))

    def _end(self, queue: Queue, claim: Claim, now: int) -> int:
        """Free what it holds; return how many."""
        del queue.claims[claim.id]
        queue.claim_ends.forget(claim.id)
        held = list(claim.entries.values())
        for entry in held:
            self._store.place(entry, now, now)
        return len(held)

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        with self._lock:
            known, boot, _ = self.tidy(queue)
            claim = known.claims.get(claim_id)
            return _held(queue, claim, boot) if claim else None

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        with self._lock:
            known, boot, now = self.tidy(queue)
            claim = known.claims.get(claim_id)
            if claim is None:
                return None
            self._hold(known, claim, micros(ttl), claim.grace if grace is None else micros(grace), boot, now)
            return _held(queue, claim, boot)

    def _release(self, queue: str, claim_id: str) -> int:
        with self._lock:
            known, _, now = self.tidy(queue)
            claim = known.claims.get(claim_id)
            return self._end(known, claim, now) if claim else 0

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        with self._lock:
            known, _, now = self.tidy(queue)
            claim = known.claims.get(claim_id) if claim_id is not None else None
            if claim is None and claim_id is not None:
                return None
            return [self._delete_one(queue, ident, claim, now) for ident in idents]

    def _delete_one(self, name: str, ident: str, claim: Claim | None, now: int) -> Deleted:
        """Delete a message that `claim` holds, or that nobody does."""
        entry = self._store.by_id.get(ident)
        if entry is None or entry.queue != name or entry.state is State.DEAD:
            return Deleted.DONE
        if entry.claim is not claim or (claim is None and entry.state is State.LEASED):
            return Deleted.FORBIDDEN
        self._store.remove(entry, now)
        return Deleted.DONE

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        with self._lock:
            known, _, now = self.tidy(queue)
            taken = list(islice(self._free(known, 0, now), limit))
            for entry in taken:
                self._store.remove(entry, now)
            return [_told(entry) for entry in taken]

    def _list(self, queue: str, after: int, limit: int, claimed: bool) -> list[QueueMessage]:
        states = (State.WAITING, State.LEASED) if claimed else (State.WAITING,)
        with self._lock:
            self.tidy(queue)
            listed = (entry for entry in self._store.entries.values() if entry.queue == queue and entry.seq > after)
            found = islice((entry for entry in listed if entry.state in states), limit)
            return [_told(entry, whole=True) for entry in found]

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        with self._lock:
            known, boot, _ = self.tidy(queue)
            page = sorted(ident for ident in known.claims if ident > after)[:limit]
            return [_held(queue, known.claims[ident], boot, listed=True) for ident in page]

    def _stats(self, queue: str) -> ClaimStats:
        with self._lock:
            known, _, _ = self.tidy(queue)
            claimed, free, delayed = (known.count(s) for s in (State.LEASED, State.WAITING, State.DELAYED))
            return ClaimStats(claimed, free, delayed, known.expired)


def _held(queue: str, claim: Claim, boot: int, listed: bool = False) -> HeldClaim:
    entries = claim.entries.values()
    return HeldClaim(
        id=claim.id,
        queue=queue,
        ttl=claim.ttl / MICRO,
        grace=claim.grace / MICRO,
        age=(boot - claim.since) // MICRO,
        messages=() if listed else tuple(_told(entry) for entry in entries),
        count=len(entries),
    )


def _told(entry: Entry, *, whole: bool = False) -> QueueMessage:
    """Return the message as claims show it; `whole`: with its body, of any size."""
    return QueueMessage(
        id=entry.id,
        queue=entry.queue,
        body=entry.body if whole or len(entry.body) <= MAX_BODY_BYTES else OVERSIZED,
        handler=entry.handler,
        priority=entry.priority,
        enqueued_at=entry.enqueued_at / MICRO,
        claims=entry.claims,
        claim=entry.claim.id if entry.claim else None,
        ends_at=entry.ends_at / MICRO if entry.ends_at is not None else None,
        cursor=str(entry.seq),
    )
