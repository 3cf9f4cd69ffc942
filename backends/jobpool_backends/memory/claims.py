"""The part for claims and posted messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

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
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool_backends.memory.store import Store
from jobpool_backends.memory.values import Claim, Entry, Queue, Turn
from jobpool_backends.shared import MICRO, micros, unix_time


class MemoryClaims(ClaimStore):
    def __init__(self, turn: Turn, store: Store) -> None:
        self._turn = turn
        self._store = store

    def tidy(self, name: str) -> Queue:
        """Expire what is due in a queue, within a turn; return the queue."""
        queue = self._store.queues[name]
        for ident, _ in queue.claim_ends.due(self._turn.boot):
            self._end(queue, queue.claims[ident])
        self._store.sweep(queue)
        return queue

    @contextmanager
    def _step(self, name: str) -> Iterator[Queue]:
        """Make the block one step on a queue in which nothing is overdue."""
        with self._turn.step():
            yield self.tidy(name)

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        with self._turn.step():
            self._store.add_posts(queue, posts)

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        with self._step(queue) as known:
            claim = known.claims.get(claim_id)
            if claim is None:
                found = list(islice(self._free(known, max_claims), limit))
                if not found:
                    return None
                claim = known.claims[claim_id] = Claim(claim_id)
                for entry in found:
                    self._store.move(entry, State.LEASED)
                    entry.owner, entry.fetched_by, entry.claim = claim_id, "", claim
                    entry.deliveries += 1
                    entry.claims += 1
                    claim.entries[entry.seq] = entry
                self._hold(known, claim, micros(ttl), micros(grace))
            return self._held(queue, claim)

    def _free(self, queue: Queue, most: int = 0) -> Iterator[Entry]:
        """Yield the messages that can be claimed, in order, each taken off its heap.

        Past `most` claims (0 = any) a message dies instead.
        """
        for entry in self._store.ready(queue.jobs, queue.posts):
            if 0 < most <= entry.claims:
                self._store.bury(entry, CLAIM_LIMIT)
            else:
                yield entry

    def _hold(self, queue: Queue, claim: Claim, ttl: int, grace: int) -> None:
        """Let the claim end `ttl` from now, and its messages live at least `grace` longer."""
        claim.ttl, claim.grace, claim.since, claim.end = ttl, grace, self._turn.boot, self._turn.boot + ttl
        queue.claim_ends.put(claim.id, claim.end)
        enough = self._turn.now + min(ttl + grace, micros(MOST_LIFE))
        for entry in claim.entries.values():
            entry.hold(ttl, self._turn)
            if entry.ends_at is not None:
                self._store.live_until(entry, max(entry.ends_at, enough))

    def _end(self, queue: Queue, claim: Claim) -> int:
        """Free what it holds; return how many."""
        del queue.claims[claim.id]
        queue.claim_ends.forget(claim.id)
        held = list(claim.entries.values())
        for entry in held:
            self._store.place(entry, self._turn.now)
        return len(held)

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        with self._step(queue) as known:
            claim = known.claims.get(claim_id)
            return self._held(queue, claim) if claim else None

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        with self._step(queue) as known:
            claim = known.claims.get(claim_id)
            if claim is None:
                return None
            self._hold(known, claim, micros(ttl), claim.grace if grace is None else micros(grace))
            return self._held(queue, claim)

    def _release(self, queue: str, claim_id: str) -> int:
        with self._step(queue) as known:
            claim = known.claims.get(claim_id)
            return self._end(known, claim) if claim else 0

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        with self._step(queue) as known:
            claim = known.claims.get(claim_id) if claim_id is not None else None
            if claim is None and claim_id is not None:
                return None
            return [self._delete_one(queue, ident, claim) for ident in idents]

    def _delete_one(self, name: str, ident: str, claim: Claim | None) -> Deleted:
        """Delete a message that `claim` holds, or that nobody does."""
        entry = self._store.by_id.get(ident)
        if entry is None or entry.queue != name or entry.state is State.DEAD:
            return Deleted.DONE
        if entry.claim is not claim or (claim is None and entry.state is State.LEASED):
            return Deleted.FORBIDDEN
        self._store.remove(entry)
        return Deleted.DONE

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        with self._step(queue) as known:
            taken = list(islice(self._free(known), limit))
            for entry in taken:
                self._store.remove(entry)
            return [_told(entry) for entry in taken]

    def _list(self, queue: str, after: int, limit: int, claimed: bool) -> list[QueueMessage]:
        states = (State.WAITING, State.LEASED) if claimed else (State.WAITING,)
        with self._step(queue):
            listed = (entry for entry in self._store.entries.values() if entry.queue == queue and entry.seq > after)
            found = islice((entry for entry in listed if entry.state in states), limit)
            return [_told(entry, whole=True) for entry in found]

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        with self._step(queue) as known:
            page = sorted(ident for ident in known.claims if ident > after)[:limit]
            return [self._held(queue, known.claims[ident], listed=True) for ident in page]

    def _stats(self, queue: str) -> ClaimStats:
        with self._step(queue) as known:
            claimed, free, delayed = map(known.count, (State.LEASED, State.WAITING, State.DELAYED))
            return ClaimStats(claimed, free, delayed, known.expired)

    def _held(self, queue: str, claim: Claim, listed: bool = False) -> HeldClaim:
        """Return the claim, in a list without its messages."""
        messages = () if listed else tuple(map(_told, claim.entries.values()))
        age = (self._turn.boot - claim.since) // MICRO
        return HeldClaim(claim.id, queue, claim.ttl / MICRO, claim.grace / MICRO, age, messages, len(claim.entries))


def _told(entry: Entry, *, whole: bool = False) -> QueueMessage:
    """Return the message as claims show it; `whole`: with its body, of any size."""
    body = entry.body if whole or len(entry.body) <= MAX_BODY_BYTES else OVERSIZED
    told = (entry.id, entry.queue, body, entry.handler, entry.priority, entry.enqueued_at / MICRO, entry.claims)
    claim = entry.claim.id if entry.claim else None
    return QueueMessage(*told, claim, unix_time(entry.ends_at), str(entry.seq))
