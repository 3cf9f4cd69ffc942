"""How messages are claimed, and what becomes of claims. Its owner holds the lock, tells the time, and has `tidy` done.

All that is asked here is asked of what is left after that: the live claims, and what nobody holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from jobpool.broker.claim_store import CLAIM_LIMIT, MOST_LIFE, Deleted
from jobpool.broker.values import State
from jobpool_backends.memory.store import Store
from jobpool_backends.memory.values import Claim, Entry, Queue
from jobpool_backends.shared import micros


class Claiming:
    """Claims of one store. `now` is Unix time, `boot` CLOCK_BOOTTIME, both in microseconds, as lengths are."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tidy(self, queue: Queue, boot: int, now: int) -> None:
        """Free what ended claims hold, and see to lives and delays."""
        for ident, _ in queue.claim_ends.due(boot):
            self.end(queue, queue.claims[ident], now)
        self._store.tend(queue, now)

    def take(self, queue: Queue, claim: Claim, limit: int, most: int, boot: int, now: int) -> Claim | None:
        """Have `claim` hold up to `limit` messages; None when there are none."""
        found = list(islice(self.free(queue, most, now), limit))
        if not found:
            return None
        for entry in found:
            self._store.move(entry, State.LEASED)
            entry.owner, entry.fetched_by = claim.id, ""
            entry.deliveries += 1
            entry.claims += 1
            entry.claim = claim
            claim.entries[entry.seq] = entry
        queue.claims[claim.id] = claim
        self.hold(queue, claim, claim.ttl, claim.grace, boot, now)
        return claim

    def free(self, queue: Queue, most: int, now: int) -> Iterator[Entry]:
        """Yield the messages that can be claimed, in order, each taken off its heap; past `most` claims (0 = any) a
        message dies instead.
        """
        for entry in self._store.ready(queue.jobs, queue.posts):
            if 0 < most <= entry.claims:
                self._store.bury(entry, CLAIM_LIMIT, None, now)
            else:
                yield entry

    def hold(self, queue: Queue, claim: Claim, ttl: int, grace: int, boot: int, now: int) -> None:
        """Let the claim end `ttl` from now, and its messages live at least `grace` longer."""
        claim.ttl, claim.grace, claim.since, claim.end = ttl, grace, boot, boot + ttl
        queue.claim_ends.put(claim.id, claim.end)
        enough = now + min(ttl + grace, micros(MOST_LIFE))
        for entry in claim.entries.values():
            self._store.hold(entry, ttl, boot, now)
            if entry.ends_at is not None:
                self._store.live_until(entry, max(entry.ends_at, enough))

    def end(self, queue: Queue, claim: Claim, now: int) -> int:
        """Free what it holds; how many."""
        del queue.claims[claim.id]
        queue.claim_ends.forget(claim.id)
        held = list(claim.entries.values())
        for entry in held:
            self._store.place(entry, now, now)
        return len(held)

    def delete(self, name: str, ident: str, claim: Claim | None, now: int) -> Deleted:
        """Delete a message that `claim` holds, or that nobody does."""
        entry = self._store.by_id.get(ident)
        if entry is None or entry.queue != name or entry.state is State.DEAD:
            return Deleted.DONE
        if entry.claim is not claim or (claim is None and entry.state is State.LEASED):
            return Deleted.FORBIDDEN
        self._store.remove(entry, now)
        return Deleted.DONE
