"""Ending leases, and holding them longer.

Each is one statement for a whole batch. Acks, which are nearly all that a pool sends, go together; the rest, and
whatever a batch says twice of one message, goes one by one in its order, within the same statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from jobpool.backend import NewMessage
from jobpool.clock import Clock
from jobpool.lease import JobLease
from jobpool.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.postgres.calls import Sweeper, read_answers
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.fetching import holder_of, number_of
from jobpool_backends.postgres.literals import fill, names, numbers, storable
from jobpool_backends.postgres.producing import Producer
from jobpool_backends.shared import delay_micros, micros

_ACK = "SELECT {schema}.settle(%(call)b, %(ack_queues)s, %(ack_seqs)s, %(ack_holders)s)"
_SETTLE = """
SELECT {schema}.settle(%(call)b, %(ack_queues)s, %(ack_seqs)s, %(ack_holders)s, %(queues)s, %(seqs)s, %(holders)s,
    %(verbs)b, %(delays)s, %(reasons)b::text[], %(errors)b::text[])
"""
_RENEW = "SELECT {schema}.renew(%(queues)s, %(seqs)s, %(holders)s, %(length)b::bigint)"

_STAYS = -1
"""Instead of a delay, of what does not come back by this."""

Settlements = Sequence[tuple[JobLease, Settlement]]
Handle = tuple[int, int, int, str]
"""Of a lease: sequence number, place in the call, holder, queue."""


@dataclass(slots=True)
class _Rest:
    """What is settled one by one."""

    handles: list[Handle] = field(default_factory=list)
    verbs: list[str] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)

    def add(self, handle: Handle, settlement: Settlement) -> None:
        self.handles.append(handle)
        match settlement:
            case Ack():
                self._say("a")
            case Nack(delay, error):
                self._say("n", delay_micros(delay), error=error)
            case Release(delay):
                self._say("r", delay_micros(delay))
            case Abandon(reason, error):
                self._say("b", reason=reason, error=error)
            case Forfeit(cause):
                self._say("f", reason=cause)

    def _say(self, verb: str, delay: int = _STAYS, *, reason: str | None = None, error: str | None = None) -> None:
        self.verbs.append(verb)
        self.delays.append(delay)
        self.reasons.append(None if reason is None else storable(reason))
        self.errors.append(None if error is None else storable(error))

    def arguments(self) -> dict[str, Any]:
        return _arguments(self.handles) | {
            "verbs": "".join(self.verbs),
            "delays": numbers(self.delays),
            "reasons": self.reasons,
            "errors": self.errors,
        }


class Settler:
    """Settles and renews leases of one database."""

    def __init__(self, database: Database, clock: Clock, sweeper: Sweeper, producer: Producer) -> None:
        self._database = database
        self._clock = clock
        self._sweeper = sweeper
        self._producer = producer
        self._ack, self._settle, self._renew = (fill(sql, database.schema) for sql in (_ACK, _SETTLE, _RENEW))

    def settle(self, settlements: Settlements, follow_ups: dict[int, list[NewMessage]], call_id: str) -> list[Settled]:
        """The answers. `follow_ups` by the place of their ack."""
        acks, rest = _sort_out(settlements)
        asked = {"call": call_id} | _arguments(acks, "ack_")
        sql = self._ack
        if rest.handles:
            asked |= rest.arguments()
            sql = self._settle
        order = [handle[1] for handle in acks + rest.handles]
        if follow_ups:
            answers = self._database.transaction(
                lambda link: self._with_follow_ups(link, sql, asked, order, follow_ups)
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

    def _with_follow_ups(
        self,
        link: psycopg.Connection[Any],
        sql: str,
        asked: dict[str, Any],
        order: list[int],
        follow_ups: dict[int, list[NewMessage]],
    ) -> list[Settled]:
        answers = _in_order(link.execute(sql, asked).fetchall(), order)
        new = [
            message for place, messages in follow_ups.items() if answers[place] is Settled.OK for message in messages
        ]
        if new:
            self._producer.add_on(link, new)
        return answers


def _sort_out(settlements: Settlements) -> tuple[list[Handle], _Rest]:
    """The acks, and all others. Where a message comes twice, everything is in the second."""
    handles = [(number_of(lease), place, holder_of(lease), lease.queue) for place, (lease, _) in enumerate(settlements)]
    alone = len({handle[0] for handle in handles}) == len(handles)
    acks: list[Handle] = []
    rest = _Rest()
    for handle, (_, settlement) in zip(handles, settlements, strict=True):
        if alone and type(settlement) is Ack:
            acks.append(handle)
        else:
            rest.add(handle, settlement)
    return acks, rest


def _arguments(handles: Sequence[Handle], prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}queues": names([handle[3] for handle in handles]),
        f"{prefix}seqs": numbers([handle[0] for handle in handles]),
        f"{prefix}holders": numbers([handle[2] for handle in handles]),
    }


def _in_order(rows: list[tuple[Any, ...]], order: list[int]) -> list[Settled]:
    """The answers in the order of the call; `order` has the place of each."""
    [(letters,)] = rows
    answers = read_answers(letters)
    return [answer for _, answer in sorted(zip(order, answers, strict=True), key=_first)]


def _first(pair: tuple[int, Settled]) -> int:
    return pair[0]


def _renewed(lease: JobLease, letter: str, expires_at: float) -> JobLease | None:
    if letter == "r":
        return replace(lease, expires_at=expires_at)
    return lease if letter == "k" else None
