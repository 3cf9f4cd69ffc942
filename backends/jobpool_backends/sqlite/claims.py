"""The claim store: transactions, the time, and who is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jobpool.broker.claim_store import ClaimStats, ClaimStore, Deleted, HeldClaim, NewPost, QueueMessage
from jobpool.broker.values import MessageFilter, State
from jobpool.clock import Clock
from jobpool_backends.shared import MICRO, DeadCaps, read_cursor
from jobpool_backends.sqlite import claimed, claiming, deleting, ending, posting
from jobpool_backends.sqlite.calls import Sweeper
from jobpool_backends.sqlite.clock import Moment, read_moment
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.filters import search
from jobpool_backends.sqlite.inspect import find
from jobpool_backends.sqlite.step import Step

_WORTH_A_TRANSACTION = f"""
SELECT EXISTS (SELECT 1 FROM messages INDEXED BY messages_ready WHERE queue = :queue AND state = 0)
    OR EXISTS (SELECT 1 FROM messages INDEXED BY messages_posts WHERE queue = :queue AND state = 4)
    OR EXISTS (SELECT 1 FROM messages INDEXED BY messages_due
               WHERE queue = :queue AND state = 1 AND available_at <= :wall)
    OR EXISTS (SELECT 1 FROM messages INDEXED BY messages_posts_due
               WHERE queue = :queue AND state = 5 AND available_at <= :wall)
    OR EXISTS (SELECT 1 FROM claims WHERE queue = :queue AND id = :claim)
    OR {ending.ANY_ENDED}
"""
_FREE, _FREE_OR_HELD = (State.WAITING,), (State.WAITING, State.LEASED)


class SqliteClaims(ClaimStore):
    """The claims of one database; the calls that would meet ended ones clear them.

    Args:
        wake: Wakes the threads that wait for jobs.
    """

    def __init__(
        self, database: Database, clock: Clock, boot: int, sweeper: Sweeper, caps: DeadCaps, wake: Callable[[], None]
    ) -> None:
        self._database = database
        self._clock = clock
        self._boot = boot
        self._sweeper = sweeper
        self._caps = caps
        self._wake = wake

    # --- transactions --------------------------------------------------------------------------------

    def _now(self) -> Moment:
        return read_moment(self._clock, self._boot)

    @contextmanager
    def _write(self, queue: str) -> Iterator[Step]:
        with self._database.write() as connection:
            step = Step(connection, queue, self._now())
            yield step
            step.counts.write(connection)
            self._sweeper.sweep(connection, step.now.wall)
        if step.frees_jobs:
            self._wake()

    @contextmanager
    def _write_cleared(self, queue: str) -> Iterator[Step]:
        with self._write(queue) as step:
            step.frees_jobs = ending.clear(step.connection, queue, step.now, step.counts)
            yield step

    @contextmanager
    def _read_cleared(self, queue: str) -> Iterator[Step]:
        """Yield a read transaction; if something has ended, a write transaction that has cleared it."""
        with self._database.read() as connection:
            step = Step(connection, queue, self._now())
            if not ending.is_any(connection, queue, step.now):
                yield step
                return
        with self._write_cleared(queue) as step:
            step.counts.write(step.connection)
            yield step

    def _has_work(self, queue: str, claim_id: str = "") -> bool:
        """Look without the lock if there is work: an empty queue costs no write transaction."""
        with self._database.read() as connection:
            asked = self._now().arguments(queue) | {"claim": claim_id}
            return bool(connection.execute(_WORTH_A_TRANSACTION, asked).fetchone()[0])

    # --- messages ------------------------------------------------------------------------------------

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        with self._write(queue) as step:
            posting.add(step.connection, queue, posts, step.now.wall, step.counts)

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        with self._write(queue) as step:
            if claim_id is not None and not claimed.read_live(step.connection, queue, claim_id, step.now):
                return None
            return deleting.delete(step, idents, claim_id)

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        if not self._has_work(queue):
            return []
        with self._write_cleared(queue) as step:
            return deleting.pop(step, limit)

    def _list(self, queue: str, after: str | None, limit: int, with_held: bool) -> list[QueueMessage]:
        first = read_cursor(after)
        with self._read_cleared(queue) as step:
            where = MessageFilter(queue=queue, states=_FREE_OR_HELD if with_held else _FREE)
            wanted = search(where, [], step.now.wall)
            rows = find(step.connection, wanted, claimed.LISTED, first, limit)
        return [claimed.message(row) for row in rows]

    def _stats(self, queue: str) -> ClaimStats:
        with self._read_cleared(queue) as step:
            return claimed.count(step.connection, queue, step.now)

    # --- claims --------------------------------------------------------------------------------------

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        if not self._has_work(queue, claim_id):
            return None
        with self._write_cleared(queue) as step:
            known = claimed.read(step.connection, queue, claim_id)
            if known and known.lives(step.now):
                return claimed.show(step.connection, queue, known, step.now)
            if known:  # ended, and not cleared, because there was so much
                ending.free(step.connection, queue, [claim_id], step.counts, step.now)
            claim = claiming.begin(claim_id, ttl, grace, step.now)
            return claiming.take(step, claim, limit, max_claims, self._caps)

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        with self._database.read() as connection:
            now = self._now()
            claim = claimed.read_live(connection, queue, claim_id, now)
            return claimed.show(connection, queue, claim, now) if claim else None

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        with self._write(queue) as step:
            old = claimed.read_live(step.connection, queue, claim_id, step.now)
            if old is None:
                return None
            grace = old.grace / MICRO if grace is None else grace
            return claiming.prolong(step, claiming.begin(claim_id, ttl, grace, step.now))

    def _release(self, queue: str, claim_id: str) -> int:
        with self._write(queue) as step:
            if not claimed.read_live(step.connection, queue, claim_id, step.now):
                return 0
            freed = ending.free(step.connection, queue, [claim_id], step.counts, step.now)
            step.frees_jobs = any(message.is_job for message in freed)
            return sum(message.lives(step.now) for message in freed)

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        with self._read_cleared(queue) as step:
            return claimed.page(step.connection, queue, after, limit, step.now)
