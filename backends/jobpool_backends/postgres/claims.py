"""Messages that are checked out by hand: the functions of `sql/claiming.sql` and its neighbours, one a verb."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg

from jobpool.broker.claim_store import ClaimStats, ClaimStore, Deleted, HeldClaim, NewPost, QueueMessage
from jobpool.message.envelope import OVERSIZED
from jobpool.message.names import storable
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.enqueue import in_pieces
from jobpool_backends.postgres.fetch import HOLDERS
from jobpool_backends.postgres.inspect import STATS_CAP
from jobpool_backends.postgres.retention import Sweeper
from jobpool_backends.shared import MICRO, micros
from jobpool_backends.sql import read_queue_message

_POST = """
SELECT {schema}.post(%(queue)b, %(ids)b::text[], %(given)b::boolean[], %(bodies)b::bytea[], %(lives)b::bigint[],
    %(delays)b::bigint[])
"""
_CLAIM = """
SELECT * FROM {schema}.check_out(%(queue)b, %(claim)b, %(limit)b, %(ttl)b::bigint, %(grace)b::bigint,
    %(max_claims)b::integer, %(holder)b::bigint, %(kept)b::bigint, %(age)b::bigint)
"""
_GET = "SELECT * FROM {schema}.show_claim(%(queue)b, %(claim)b)"
_RENEW = "SELECT * FROM {schema}.prolong_claim(%(queue)b, %(claim)b, %(ttl)b::bigint, %(grace)b::bigint)"
_RELEASE = "SELECT {schema}.release_claim(%(queue)b, %(claim)b)"
_DELETE = "SELECT {schema}.delete_messages(%(queue)b, %(ids)b::text[], %(claim)b::text)"
_POP = "SELECT * FROM {schema}.pop_messages(%(queue)b, %(limit)b)"
_LIST = "SELECT * FROM {schema}.list_free(%(queue)b, %(claimed)b, %(behind)b::bigint, %(limit)b)"
_CLAIMS = "SELECT * FROM {schema}.list_claims(%(queue)b, %(after)b, %(limit)b)"
_STATS = "SELECT * FROM {schema}.claim_stats(%(queue)b, %(most)b)"

BUSY_RETRY_S = 0.5
"""Seconds for which a call asks again, when others have a hand on what it could take: they are quick, mostly."""

_MIN_NAP_S = 0.002
_MAX_NAP_S = 0.02

_ANSWERS = {"d": Deleted.DONE, "f": Deleted.FORBIDDEN, "?": Deleted.FORBIDDEN}
_BUSY = "?"

Row = tuple[Any, ...]
Result = TypeVar("Result")


class PostgresClaims(ClaimStore):
    """Claims and posted messages of one database.

    Each call is one statement, hence one transaction and one round trip, unless very much is posted at once. A claim
    that finds nothing because others have a hand on all that is free asks again, for up to half a second. Counts go up
    to 10,000 each, and pages end before 16 MiB of bodies.
    """

    def __init__(self, database: Database, sweeper: Sweeper) -> None:
        self._database = database
        self._sweeper = sweeper
        self._caps = database.address.caps

    def _ask(self, sql: str, repeatable: bool = True, **asked: Any) -> list[Row]:
        return self._database.run(sql, asked, repeatable=repeatable)

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        pieces = [_columns(queue, piece) for piece in in_pieces(posts)]
        if len(pieces) == 1:
            self._ask(_POST, **pieces[0])
        else:
            self._database.transaction(lambda connection: self._post_on(connection, pieces))
        self._sweeper.sweep()

    def _post_on(self, connection: psycopg.Connection[Any], pieces: list[dict[str, Any]]) -> None:
        for piece in pieces:
            connection.execute(self._database.fill(_POST), piece)

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        asked: dict[str, Any] = {
            "queue": queue,
            "claim": claim_id,
            "limit": limit,
            "ttl": micros(ttl),
            "grace": micros(grace),
            "max_claims": max_claims,
            "holder": secrets.randbelow(HOLDERS),
            "kept": self._caps.most or None,
            "age": self._caps.age or None,
        }
        rows = _persist(lambda: self._ask(_CLAIM, **asked), _is_busy)
        return None if _is_busy(rows) else _held(queue, claim_id, rows)

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        return _held(queue, claim_id, self._ask(_GET, queue=queue, claim=claim_id))

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        new = None if grace is None else micros(grace)
        return _held(queue, claim_id, self._ask(_RENEW, queue=queue, claim=claim_id, ttl=micros(ttl), grace=new))

    def _release(self, queue: str, claim_id: str) -> int:
        freed: int
        [(freed,)] = self._ask(_RELEASE, queue=queue, claim=claim_id)
        return freed

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        ids = [storable(ident) for ident in idents]
        letters = _persist(lambda: self._delete_once(queue, ids, claim_id), _is_partly_busy)
        self._sweeper.sweep()
        return None if letters is None else [_ANSWERS[letter] for letter in letters]

    def _delete_once(self, queue: str, ids: list[str], claim_id: str | None) -> str | None:
        letters: str | None
        [(letters,)] = self._ask(_DELETE, queue=queue, ids=ids, claim=claim_id)
        return letters

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        rows = _persist(lambda: self._ask(_POP, repeatable=False, queue=queue, limit=limit), _is_busy)
        self._sweeper.sweep()
        return [] if _is_busy(rows) else _in_order(queue, None, rows)

    def _list(self, queue: str, after: int, limit: int, claimed: bool) -> list[QueueMessage]:
        rows = self._ask(_LIST, queue=queue, claimed=claimed, behind=after, limit=limit)
        return [_message(queue, claim, row) for *row, claim in rows]

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        rows = self._ask(_CLAIMS, queue=queue, after=storable(after), limit=limit)
        return [
            HeldClaim(ident, queue, ttl / MICRO, grace / MICRO, _age(since, now), count=count)
            for ident, ttl, grace, since, now, count in rows
        ]

    def _stats(self, queue: str) -> ClaimStats:
        [counts] = self._ask(_STATS, queue=queue, most=STATS_CAP)
        return ClaimStats(*counts)


def _persist(ask: Callable[[], Result], is_busy: Callable[[Result], bool]) -> Result:
    """Repeat `ask()` until its answer is not busy, or time is up; return the last answer."""
    answer = ask()
    if is_busy(answer):
        give_up = time.monotonic() + BUSY_RETRY_S
        nap = _MIN_NAP_S
        while is_busy(answer) and time.monotonic() < give_up:
            time.sleep(random.uniform(0.0, nap))
            nap = min(nap * 2, _MAX_NAP_S)
            answer = ask()
    return answer


def _is_busy(rows: list[Row]) -> bool:
    return len(rows) == 1 and rows[0][0] is None


def _is_partly_busy(letters: str | None) -> bool:
    return letters is not None and _BUSY in letters


def _columns(queue: str, posts: Sequence[NewPost]) -> dict[str, Any]:
    return {
        "queue": queue,
        "ids": [post.id for post in posts],
        "given": [post.given for post in posts],
        "bodies": [post.body for post in posts],
        "lives": [None if post.life is None else micros(post.life) for post in posts],
        "delays": [micros(post.delay) for post in posts],
    }


def _held(queue: str, claim_id: str, rows: list[Row]) -> HeldClaim | None:
    """Return the claim in rows that begin with the claim itself; None if there are none."""
    if not rows:
        return None
    ttl, grace, since, now = rows[0][:4]
    messages = _in_order(queue, claim_id, [row[4:] for row in rows if row[4] is not None])
    return HeldClaim(
        claim_id, queue, ttl / MICRO, grace / MICRO, _age(since, now), tuple(messages), count=len(messages)
    )


def _in_order(queue: str, claim: str | None, rows: list[Row]) -> list[QueueMessage]:
    return [_message(queue, claim, row) for row in sorted(rows, key=_place)]


def _place(row: Row) -> tuple[int, int]:
    return row[4], row[0]


def _message(queue: str, claim: str | None, row: Sequence[Any]) -> QueueMessage:
    return read_queue_message(queue, claim, row, OVERSIZED if row[2] is None else row[2])


def _age(since: int, now: int) -> int:
    return max(0, now - since) // MICRO
