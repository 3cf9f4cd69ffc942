"""Ending leases, and holding them longer.

Each is one statement for a whole batch. Acks, nearly all that a pool sends, go together. The rest goes one by one, in
order, within the same statement: other settlements, acks that mark a key done, and messages named twice. Follow-ups and
messages that move are a second statement of the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from jobpool.broker.parts import Brought, Settlements
from jobpool.clock import Clock
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.names import storable
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.enqueue import Enqueuer
from jobpool_backends.postgres.fetch import lease_columns, numbers
from jobpool_backends.postgres.retention import Sweeper
from jobpool_backends.shared import delay_micros, micros
from jobpool_backends.sql import number_of, with_past

_ACK = "SELECT {schema}.settle(%(call)b, %(ack_queues)s, %(ack_seqs)s, %(ack_holders)s)"
_SETTLE = """
SELECT {schema}.settle(%(call)b, %(ack_queues)s, %(ack_seqs)s, %(ack_holders)s, %(queues)s, %(seqs)s, %(holders)s,
    %(verbs)b, %(delays)s, %(reasons)b::text[], %(errors)b::text[], %(causes)b::text[], %(keys)b::text[],
    %(keeps)b::bigint[], %(starts)b::text[])
"""
_RENEW = "SELECT {schema}.renew(%(queues)s, %(seqs)s, %(holders)s, %(length)b::bigint)"

_PAST = "SELECT last_error, cause FROM {schema}.messages WHERE queue = %(queue)s AND state = 2 AND seq = %(seq)s"

_STAYS = -1
"""Instead of a delay, of what does not come back by this."""

_ANSWERS = {
    "o": Settled.OK,
    "a": Settled.ALREADY,
    "n": Settled.NOT_IN_FLIGHT,
    "e": Settled.EXPIRED,
    "w": Settled.NOT_OWNER,
}


class _Term(NamedTuple):
    """A settlement that goes by itself, as the columns of the function `settle`."""

    verb: str
    delay: int = _STAYS
    reason: str | None = None
    error: str | None = None
    cause: str | None = None
    key: str | None = None
    keep: int | None = None
    starts: str | None = None


class Settler:
    """The settler and renewer of one database's leases."""

    def __init__(self, database: Database, clock: Clock, sweeper: Sweeper, enqueuer: Enqueuer) -> None:
        self._database = database
        self._clock = clock
        self._sweeper = sweeper
        self._enqueuer = enqueuer

    def settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        """Return the answers. `brought`: what each settlement adds to queues, by its place."""
        acks, rest = _sort_out(settlements)
        sql, asked = _ACK, {"call": call_id} | lease_columns([settlements[place][0] for place in acks], "ack_")
        if rest:
            sql = _SETTLE
            asked |= lease_columns([settlements[place][0] for place in rest])
            asked |= _columns([_term(settlements[place][1], settlements[place][0].guards) for place in rest])
        order = acks + rest
        if brought:
            sql = self._database.fill(sql)
            answers = self._database.transaction(
                lambda connection: self._and_bring(
                    connection, sql, asked, order, self._with_pasts(connection, settlements, brought)
                )
            )
        else:
            answers = _in_order(self._database.run(sql, asked), order)
        self._sweeper.sweep()
        return answers

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        before = self._clock.boot()
        [(letters,)] = self._database.run(_RENEW, lease_columns(leases) | {"length": micros(ttl)})
        return [_renewed(lease, letter, before + ttl) for lease, letter in zip(leases, letters, strict=True)]

    def _with_pasts(self, connection: psycopg.Connection[Any], settlements: Settlements, brought: Brought) -> Brought:
        """Return `brought`, with the last error and cause of messages that move without new ones."""
        whole = dict(brought)
        for place, messages in brought.items():
            lease, settlement = settlements[place]
            if isinstance(settlement, Move) and (settlement.error is None or settlement.cause is None):
                asked = {"queue": lease.queue, "seq": number_of(lease)}
                past = connection.execute(self._database.fill(_PAST), asked).fetchone()
                whole[place] = [with_past(message, past or (None, None)) for message in messages]  # None: it is refused
        return whole

    def _and_bring(
        self,
        connection: psycopg.Connection[Any],
        sql: str,
        asked: dict[str, Any],
        order: list[int],
        brought: Brought,
    ) -> list[Settled]:
        answers = _in_order(connection.execute(sql, asked).fetchall(), order)
        new = [message for place, messages in brought.items() if answers[place] is Settled.OK for message in messages]
        if new:
            self._enqueuer.add_on(connection, new)
        return answers


def _sort_out(settlements: Settlements) -> tuple[list[int], list[int]]:
    """Return the places of plain acks and of all others. If a message comes twice, everything is in the second."""
    alone = len({number_of(lease) for lease, _ in settlements}) == len(settlements)
    acks: list[int] = []
    rest: list[int] = []
    for place, (lease, settlement) in enumerate(settlements):
        plain = type(settlement) is Ack and (lease.guards is None or not _says_more(lease.guards))
        (acks if alone and plain else rest).append(place)
    return acks, rest


def _term(settlement: Settlement, guards: Guards | None) -> _Term:
    match settlement:
        case Ack():
            key, keep = to_be_done(guards)
            return _Term("a", key=key, keep=keep)
        case Nack(delay, error, cause):
            return _Term("n", delay_micros(delay), error=error, cause=cause)
        case Release(delay, begun):
            return _Term("s" if begun else "r", delay_micros(delay), starts=None if begun else _given_back(guards))
        case Abandon(reason, error, cause):
            return _Term("x" if settlement.attempts else "b", reason=reason, error=error, cause=cause)
        case Forfeit(cause):
            return _Term("f", reason=cause)
        case Move():
            return _Term("m")


def _columns(terms: list[_Term]) -> dict[str, Any]:
    verbs, delays, *texts = map(list, zip(*terms, strict=True))
    named = zip(("reasons", "errors", "causes", "keys", "keeps", "starts"), texts, strict=True)
    return {"verbs": "".join(verbs), "delays": numbers(delays), **dict(named)}


def _says_more(guards: Guards) -> bool:
    """Return whether an ack under these guards marks a key done, or changes how long a unique one is known."""
    return guards.key is not None or guards.keep != IDEMPOTENCY_TTL


def to_be_done(guards: Guards | None) -> tuple[str | None, int | None]:
    """Return the key that an ack marks done; and for how long, in microseconds, it and a unique key are known."""
    if guards is None or not _says_more(guards):
        return None, None
    return None if guards.key is None else storable(guards.key), micros(guards.keep)


def _given_back(guards: Guards | None) -> str | None:
    """Return the names of rates, a line each; names are printable, so that no line ends within one."""
    return "\n".join(rate.name for rate in guards.rates) if guards is not None and guards.rates else None


def _in_order(rows: list[tuple[Any, ...]], order: list[int]) -> list[Settled]:
    """Return the answers in the order of the call; `order` has the place of each."""
    [(letters,)] = rows
    answers = [_ANSWERS[letter] for letter in letters]
    return [answer for _, answer in sorted(zip(order, answers, strict=True), key=_first)]


def _first(pair: tuple[int, Settled]) -> int:
    return pair[0]


def _renewed(lease: JobLease, letter: str, expires_at: float) -> JobLease | None:
    if letter == "r":
        return replace(lease, expires_at=expires_at)
    return lease if letter == "k" else None
