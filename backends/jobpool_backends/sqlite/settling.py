"""Ending leases, and holding them longer.

A call reads its messages, judges each and writes what changed, all within one write transaction: nothing can come
between the judgement and the write, and the writes of a batch go verb by verb, not message by message.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jobpool.backend import NewMessage
from jobpool.clock import Clock
from jobpool.lease import JobLease
from jobpool.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.shared import delay_micros, micros
from jobpool_backends.sqlite import calls, producing
from jobpool_backends.sqlite.calls import Sweeper
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.fetching import owner_token
from jobpool_backends.sqlite.moment import Moment, read_moment
from jobpool_backends.sqlite.schema import DEAD, DELAYED, LEASED, WAITING
from jobpool_backends.sqlite.tally import Tally

NO_LEASE = "holder = NULL, boot = NULL, deadline = NULL, deadline_wall = NULL, ttl = NULL, forfeited = NULL"

_FACTS = """
SELECT seq, state, holder, boot, deadline, deadline_wall, given, queue
FROM messages WHERE seq IN (SELECT value FROM json_each(?))
"""
DELETE = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_BODY = "DELETE FROM bodies WHERE seq IN (SELECT value FROM json_each(?))"
_NACK = f"""
UPDATE messages
SET state = ?, available_at = ?, attempts = attempts + 1, last_error = coalesce(?, last_error), {NO_LEASE}
WHERE seq = ?
"""
_RELEASE = f"UPDATE messages SET state = ?, available_at = ?, {NO_LEASE} WHERE seq = ?"
_ABANDON = f"""
UPDATE messages SET state = 3, reason = ?, last_error = coalesce(?, last_error), died_at = ?, {NO_LEASE} WHERE seq = ?
"""
_FORFEIT = "UPDATE messages SET boot = ?, deadline = ?, deadline_wall = ?, forfeited = ? WHERE seq = ?"
_RENEW = "UPDATE messages SET boot = ?, deadline = ?, deadline_wall = ?, ttl = ? WHERE seq = ?"

Row = tuple[int | str | None, ...]


class _Fact(NamedTuple):
    """What a message is, when a call begins. The lease's columns are None in a message that is not leased."""

    seq: int
    state: int
    holder: str
    boot: int
    deadline: int
    deadline_wall: int
    given: int
    queue: str

    def forfeited(self, now: Moment) -> _Fact:
        return self._replace(boot=now.boot, deadline=now.boottime, deadline_wall=now.wall)


@dataclass(slots=True)
class _Changes:
    """What one call writes, verb by verb."""

    now: Moment
    tally: Tally = field(default_factory=Tally)
    acked: list[int] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    nacked: list[Row] = field(default_factory=list)
    released: list[Row] = field(default_factory=list)
    abandoned: list[Row] = field(default_factory=list)
    forfeited: list[Row] = field(default_factory=list)
    new: list[NewMessage] = field(default_factory=list)

    @property
    def brings_work(self) -> bool:
        """Whether somebody who waits for messages should look."""
        return bool(self.nacked or self.released or self.new)

    def add(self, seq: int, queue: str, settlement: Settlement) -> None:
        match settlement:
            case Nack(delay, error):
                state, available_at = self._place(queue, delay)
                self.nacked.append((state, available_at, error, seq))
            case Release(delay):
                state, available_at = self._place(queue, delay)
                self.released.append((state, available_at, seq))
            case Abandon(reason, error):
                self.abandoned.append((reason, error, self.now.wall, seq))
                self.tally.move(queue, LEASED, DEAD)
            case Forfeit(cause):
                self.forfeited.append((self.now.boot, self.now.boottime, self.now.wall, cause, seq))

    def _place(self, queue: str, delay: float) -> tuple[int, int]:
        later = delay_micros(delay)
        state = DELAYED if later else WAITING
        self.tally.move(queue, LEASED, state)
        return state, self.now.wall + later

    def write(self, connection: sqlite3.Connection) -> None:
        if self.acked:
            sequence = json.dumps(self.acked)
            connection.execute(DELETE, (sequence,))
            connection.execute(DELETE_BODY, (sequence,))
        if self.ended:
            calls.remember_ended(connection, self.ended, self.now.wall)
        connection.executemany(_NACK, self.nacked)
        connection.executemany(_RELEASE, self.released)
        connection.executemany(_ABANDON, self.abandoned)
        connection.executemany(_FORFEIT, self.forfeited)
        if self.new:
            producing.add(connection, self.new, self.now.wall, self.tally)
        self.tally.write(connection)


class Settler:
    """Settles and renews leases of one database."""

    def __init__(self, database: Database, clock: Clock, boot: int, sweeper: Sweeper) -> None:
        self._database = database
        self._clock = clock
        self._boot = boot
        self._sweeper = sweeper

    def settle(
        self,
        settlements: Sequence[tuple[JobLease, Settlement]],
        follow_ups: dict[int, list[NewMessage]],
        call_id: str,
    ) -> tuple[list[Settled], bool]:
        """The answers, and whether somebody who waits should look. `follow_ups` by the place of their ack."""
        with self._database.write() as connection:
            now = read_moment(self._clock, self._boot)
            answered = settle_within(connection, now, settlements, follow_ups, call_id)
            self._sweeper.sweep(connection, now.wall)
        return answered

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        before = self._clock.boot()
        length = micros(ttl)
        with self._database.write() as connection:
            now = read_moment(self._clock, self._boot)
            facts = _facts(connection, leases)
            answers = [_judge(facts.get(_number(lease)), lease, now) for lease in leases]
            deadlines = (now.boot, now.boottime + length, now.wall + length, length)
            renewed = [(*deadlines, lease.token) for lease, answer in zip(leases, answers, strict=True) if answer]
            connection.executemany(_RENEW, renewed)
        return [
            replace(lease, expires_at=before + ttl) if answer else None
            for lease, answer in zip(leases, answers, strict=True)
        ]


def settle_within(
    connection: sqlite3.Connection,
    now: Moment,
    settlements: Sequence[tuple[JobLease, Settlement]],
    follow_ups: dict[int, list[NewMessage]],
    call_id: str,
) -> tuple[list[Settled], bool]:
    """`Settler.settle`, within the write transaction that is open on `connection`."""
    call = f"settle:{call_id}"
    known = calls.recall(connection, call, now.wall)
    if known is not None:
        return calls.repeat_answers(known), False
    changes = _Changes(now)
    answers = _judge_all(connection, settlements, follow_ups, changes)
    changes.write(connection)
    calls.remember(connection, call, calls.write_answers(answers), now.wall)
    return answers, changes.brings_work


def _judge_all(
    connection: sqlite3.Connection,
    settlements: Sequence[tuple[JobLease, Settlement]],
    follow_ups: dict[int, list[NewMessage]],
    changes: _Changes,
) -> list[Settled]:
    facts = _facts(connection, [lease for lease, _ in settlements])
    answers = []
    for place, (lease, settlement) in enumerate(settlements):
        fact = facts.get(_number(lease))
        answer = _judge(fact, lease, changes.now)
        answers.append(answer)
        if fact is None or answer is not Settled.OK:
            continue
        _note(changes, fact, lease, settlement)
        if place in follow_ups:
            changes.new += follow_ups[place]
        # What the same call says next of this message meets what it has become.
        facts[fact.seq] = fact.forfeited(changes.now) if type(settlement) is Forfeit else None
    return answers


def _note(changes: _Changes, fact: _Fact, lease: JobLease, settlement: Settlement) -> None:
    if type(settlement) is not Ack:
        changes.add(fact.seq, fact.queue, settlement)
        return
    changes.acked.append(fact.seq)
    changes.tally.remove(fact.queue, LEASED)
    if fact.given:
        changes.ended.append(lease.id)


def _facts(connection: sqlite3.Connection, leases: Sequence[JobLease]) -> dict[int, _Fact | None]:
    sequence = json.dumps([_number(lease) for lease in leases])
    return {row[0]: _Fact._make(row) for row in connection.execute(_FACTS, (sequence,))}


def _number(lease: JobLease) -> int:
    """The message's sequence number; 0, which no message has, for a lease of another backend."""
    return lease.token if isinstance(lease.token, int) else 0


def _judge(fact: _Fact | None, lease: JobLease, now: Moment) -> Settled:
    """May this lease settle? The refusals in the order that the contract gives."""
    if fact is None or fact.state != LEASED:
        return Settled.NOT_IN_FLIGHT
    if now.is_past(fact.boot, fact.deadline, fact.deadline_wall):
        return Settled.EXPIRED
    return Settled.OK if lease.owner_token == owner_token(fact.holder, fact.seq) else Settled.NOT_OWNER
