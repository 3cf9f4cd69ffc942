"""Messages that are checked out by hand: the functions of `sql/claims_*.sql`, one a verb."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from jobpool.broker.claim_store import ClaimStats, ClaimStore, Deleted, HeldClaim, NewPost, QueueMessage
from jobpool.message.envelope import OVERSIZED
from jobpool.message.names import storable
from jobpool_backends.postgres.database import Database, calling
from jobpool_backends.postgres.enqueue import in_pieces
from jobpool_backends.postgres.in_transaction import or_null
from jobpool_backends.postgres.inspect import STATS_CAP
from jobpool_backends.postgres.leases import HOLDERS
from jobpool_backends.shared import MICRO, micros
from jobpool_backends.sql import read_queue_message

# A call asks again, when others have a hand on what it could take: they are quick, mostly.
BUSY_RETRY_S = 0.5
_MIN_NAP_S = 0.002
_MAX_NAP_S = 0.02

_ANSWERS = {"d": Deleted.DONE, "f": Deleted.FORBIDDEN, "?": Deleted.FORBIDDEN}

Row = tuple[Any, ...]
Result = TypeVar("Result")


class PostgresClaims(ClaimStore):
    """Claims and posted messages of one database.

    Each call is one statement, hence one transaction and one round trip, unless very much is posted at once. A claim
    that finds nothing because others have a hand on all that is free asks again, for up to half a second. Counts go up
    to 10,000 each, and pages end before 16 MiB of bodies.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._caps = database.address.caps

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        given = all(post.given for post in posts)  # a minted id is forgotten at its message's end
        pieces = [_columns(queue, piece) for piece in in_pieces(posts)]
        if len(pieces) == 1:
            self._database.call("post", *pieces[0], repeatable=given)
        else:
            sql = self._database.fill(calling("post", len(pieces[0])))
            self._database.transaction(
                lambda connection: [connection.execute(sql, piece) for piece in pieces], repeatable=given
            )
        self._database.sweep()

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        lengths, caps = (micros(ttl), micros(grace)), (self._caps.most or None, self._caps.age or None)
        asked = (queue, claim_id, limit, *lengths, max_claims, secrets.randbelow(HOLDERS), *caps)
        rows = _persist(lambda: self._database.call("check_out", *asked), _is_busy)
        return None if _is_busy(rows) else _held(queue, claim_id, rows)

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        return _held(queue, claim_id, self._database.call("show_claim", queue, claim_id))

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        kept = None if grace is None else micros(grace)
        return _held(queue, claim_id, self._database.call("prolong_claim", queue, claim_id, micros(ttl), kept))

    def _release(self, queue: str, claim_id: str) -> int:
        return int(self._database.value("release_claim", queue, claim_id))

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        ids = list(map(storable, idents))
        letters: str | None = _persist(
            lambda: self._database.value("delete_messages", queue, ids, claim_id),
            lambda letters: "?" in (letters or ""),
        )
        self._database.sweep()
        return None if letters is None else [_ANSWERS[letter] for letter in letters]

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        rows = _persist(lambda: self._database.call("pop_messages", queue, limit, repeatable=False), _is_busy)
        self._database.sweep()
        return [] if _is_busy(rows) else _in_order(queue, None, rows)

    def _list(self, queue: str, after: int, limit: int, claimed: bool) -> list[QueueMessage]:
        rows = self._database.call("list_free", queue, claimed, after, limit)
        return [_message(queue, claim, row) for *row, claim in rows]

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        rows = self._database.call("list_claims", queue, storable(after), limit)
        return [_claim_of(queue, ident, row, (), count) for ident, *row, count in rows]

    def _stats(self, queue: str) -> ClaimStats:
        [counts] = self._database.call("claim_stats", queue, STATS_CAP)
        return ClaimStats(*counts)


def _persist(ask: Callable[[], Result], is_busy: Callable[[Result], bool]) -> Result:
    """Repeat `ask()` until its answer is not busy, or time is up; return the last answer."""
    answer, nap = ask(), _MIN_NAP_S
    give_up = time.monotonic() + BUSY_RETRY_S
    while is_busy(answer) and time.monotonic() < give_up:
        time.sleep(random.uniform(0.0, nap))
        nap = min(nap * 2, _MAX_NAP_S)
        answer = ask()
    return answer


def _is_busy(rows: list[Row]) -> bool:
    return len(rows) == 1 and rows[0][0] is None


def _columns(queue: str, posts: Sequence[NewPost]) -> tuple[Any, ...]:
    """Return the parameters of the function `post`."""
    return (
        queue,
        [post.id for post in posts],
        [post.given for post in posts],
        [post.body for post in posts],
        or_null([None if post.life is None else micros(post.life) for post in posts]),
        [micros(post.delay) for post in posts],
    )


def _held(queue: str, claim_id: str, rows: list[Row]) -> HeldClaim | None:
    """Return the claim in rows that begin with the claim itself; None if there are none."""
    if not rows:
        return None
    messages = _in_order(queue, claim_id, [row[4:] for row in rows if row[4] is not None])
    return _claim_of(queue, claim_id, rows[0], messages, len(messages))


def _claim_of(queue: str, ident: str, row: Sequence[Any], messages: Sequence[QueueMessage], count: int) -> HeldClaim:
    ttl, grace, since, now = row[:4]
    return HeldClaim(ident, queue, ttl / MICRO, grace / MICRO, max(0, now - since) // MICRO, tuple(messages), count)


def _in_order(queue: str, claim: str | None, rows: list[Row]) -> list[QueueMessage]:
    """Return the messages of rows, by priority and sequence."""
    return [_message(queue, claim, row) for row in sorted(rows, key=itemgetter(4, 0))]


def _message(queue: str, claim: str | None, row: Sequence[Any]) -> QueueMessage:
    return read_queue_message(queue, claim, row, OVERSIZED if row[2] is None else row[2])
