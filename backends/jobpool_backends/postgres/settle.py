"""Ending leases, and holding them longer.

Each is one statement for a whole batch. Acks, nearly all that a pool sends, go together. The rest goes one by one, in
order, within the same statement: other settlements, acks that mark a key done, and messages named twice. Follow-ups and
messages that move are a second statement of the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from jobpool.broker.values import NewMessage
from jobpool.clock import Clock
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.names import storable
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.postgres.calls import Sweeper, read_answers
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.enqueue import Producer
from jobpool_backends.postgres.fetch import holder_of, number_of
from jobpool_backends.postgres.literals import fill, names, numbers
from jobpool_backends.shared import delay_micros, micros

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

Settlements = Sequence[tuple[JobLease, Settlement]]
Handle = tuple[int, int, int, str]
"""Of a lease: sequence number, place in the call, holder, queue."""


@dataclass(slots=True)
class _Rest:
    """Settlements that go one by one."""

    handles: list[Handle] = field(default_factory=list)
    verbs: list[str] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    causes: list[str | None] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    keeps: list[int | None] = field(default_factory=list)
    starts: list[str | None] = field(default_factory=list)

    def add(self, handle: Handle, settlement: Settlement, guards: Guards | None) -> None:
        self.handles.append(handle)
        key = keep = starts = None
        match settlement:
            case Ack():
                self._say("a")
                key, keep = to_be_done(guards)
            case Nack(delay, error, cause):
                self._say("n", delay_micros(delay), error=error, cause=cause)
            case Release(delay, begun):
                self._say("s" if begun else "r", delay_micros(delay))
                starts = None if begun else _given_back(guards)
            case Abandon(reason, error, cause):
                self._say("x" if settlement.attempts else "b", reason=reason, error=error, cause=cause)
            case Forfeit(cause):
                self._say("f", reason=cause)
            case Move():
                self._say("m")
        self.keys.append(key)
        self.keeps.append(keep)
        self.starts.append(starts)

    def _say(
        self,
        verb: str,
        delay: int = _STAYS,
        *,
        reason: str | None = None,
        error: str | None = None,
        cause: str | None = None,
    ) -> None:
        self.verbs.append(verb)
        self.delays.append(delay)
        for told, text in ((self.reasons, reason), (self.errors, error), (self.causes, cause)):
            told.append(text)

    def arguments(self) -> dict[str, Any]:
        return _arguments(self.handles) | {
            "verbs": "".join(self.verbs),
            "delays": numbers(self.delays),
            "reasons": self.reasons,
            "errors": self.errors,
            "causes": self.causes,
            "keys": self.keys,
            "keeps": self.keeps,
            "starts": self.starts,
        }


class Settler:
    """The settler and renewer of one database's leases."""

    def __init__(self, database: Database, clock: Clock, sweeper: Sweeper, producer: Producer) -> None:
        self._database = database
        self._clock = clock
        self._sweeper = sweeper
        self._producer = producer
        self._ack, self._settle, self._renew = (fill(sql, database.schema) for sql in (_ACK, _SETTLE, _RENEW))
        self._past = fill(_PAST, database.schema)

    def settle(self, settlements: Settlements, brought: dict[int, list[NewMessage]], call_id: str) -> list[Settled]:
        """Return the answers. `brought`: what each settlement adds to queues, by its place."""
        acks, rest = _sort_out(settlements)
        asked = {"call": call_id} | _arguments(acks, "ack_")
        sql = self._ack
        if rest.handles:
            asked |= rest.arguments()
            sql = self._settle
        order = [handle[1] for handle in acks + rest.handles]
        if brought:
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
        handles = [(number_of(lease), place, holder_of(lease), lease.queue) for place, lease in enumerate(leases)]
        [(letters,)] = self._database.run(self._renew, _arguments(handles) | {"length": micros(ttl)})
        return [_renewed(lease, letter, before + ttl) for lease, letter in zip(leases, letters, strict=True)]

    def _with_pasts(
        self, connection: psycopg.Connection[Any], settlements: Settlements, brought: dict[int, list[NewMessage]]
    ) -> dict[int, list[NewMessage]]:
        """Return `brought`, with the last error and cause of messages that move without new ones."""
        whole = dict(brought)
        for place, messages in brought.items():
            lease, settlement = settlements[place]
            if isinstance(settlement, Move) and (settlement.error is None or settlement.cause is None):
                row = connection.execute(self._past, {"queue": lease.queue, "seq": number_of(lease)}).fetchone()
                error, cause = row or (None, None)  # without a row the move is refused
                error = error if settlement.error is None else settlement.error
                cause = cause if settlement.cause is None else settlement.cause
                whole[place] = [replace(message, last_error=error, cause=cause) for message in messages]
        return whole

    def _and_bring(
        self,
        connection: psycopg.Connection[Any],
        sql: str,
        asked: dict[str, Any],
        order: list[int],
        brought: dict[int, list[NewMessage]],
    ) -> list[Settled]:
        answers = _in_order(connection.execute(sql, asked).fetchall(), order)
        new = [message for place, messages in brought.items() if answers[place] is Settled.OK for message in messages]
        if new:
            self._producer.add_on(connection, new)
        return answers


def _sort_out(settlements: Settlements) -> tuple[list[Handle], _Rest]:
    """Split settlements into plain acks and all others. If a message comes twice, everything is in the second."""
    handles = [(number_of(lease), place, holder_of(lease), lease.queue) for place, (lease, _) in enumerate(settlements)]
    alone = len({handle[0] for handle in handles}) == len(handles)
    acks: list[Handle] = []
    rest = _Rest()
    for handle, (lease, settlement) in zip(handles, settlements, strict=True):
        if alone and type(settlement) is Ack and (lease.guards is None or not _says_more(lease.guards)):
            acks.append(handle)
        else:
            rest.add(handle, settlement, lease.guards)
    return acks, rest


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


def _arguments(handles: Sequence[Handle], prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}queues": names([handle[3] for handle in handles]),
        f"{prefix}seqs": numbers([handle[0] for handle in handles]),
        f"{prefix}holders": numbers([handle[2] for handle in handles]),
    }


def _in_order(rows: list[tuple[Any, ...]], order: list[int]) -> list[Settled]:
    """Return the answers in the order of the call; `order` has the place of each."""
    [(letters,)] = rows
    answers = read_answers(letters)
    return [answer for _, answer in sorted(zip(order, answers, strict=True), key=_first)]


def _first(pair: tuple[int, Settled]) -> int:
    return pair[0]


def _renewed(lease: JobLease, letter: str, expires_at: float) -> JobLease | None:
    if letter == "r":
        return replace(lease, expires_at=expires_at)
    return lease if letter == "k" else None
