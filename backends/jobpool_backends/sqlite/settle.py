"""Ending leases, and holding them longer.

A call reads its messages, judges each and writes what changed, all within one write transaction: nothing can come
between the judgement and the write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from jobpool.broker.values import NewMessage
from jobpool.clock import Clock
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Forfeit, Settled, Settlement
from jobpool_backends.shared import DeadCaps, micros
from jobpool_backends.sqlite import calls
from jobpool_backends.sqlite.calls import Sweeper
from jobpool_backends.sqlite.changes import Changes
from jobpool_backends.sqlite.clock import Moment, read_moment
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.facts import Fact, judge, number, read_facts

_RENEW = "UPDATE messages SET boot = ?, deadline = ?, deadline_wall = ?, ttl = ? WHERE seq = ?"


class Settler:
    """The settler and renewer of one database's leases."""

    def __init__(self, database: Database, clock: Clock, boot: int, sweeper: Sweeper, caps: DeadCaps) -> None:
        self._database = database
        self._clock = clock
        self._boot = boot
        self._sweeper = sweeper
        self._caps = caps

    def settle(
        self,
        settlements: Sequence[tuple[JobLease, Settlement]],
        brought: dict[int, list[NewMessage]],
        call_id: str,
    ) -> tuple[list[Settled], bool]:
        """Return the answers, and whether somebody who waits should look. `brought` by the place of the settlement."""
        with self._database.write() as connection:
            now = read_moment(self._clock, self._boot)
            answered = settle_within(connection, now, settlements, brought, call_id, self._caps)
            self._sweeper.sweep(connection, now.wall)
        return answered

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        before = self._clock.boot()
        length = micros(ttl)
        with self._database.write() as connection:
            now = read_moment(self._clock, self._boot)
            facts = read_facts(connection, leases)
            answers = [judge(facts.get(number(lease)), lease, now) for lease in leases]
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
    brought: dict[int, list[NewMessage]],
    call_id: str,
    caps: DeadCaps,
) -> tuple[list[Settled], bool]:
    """Settle as `Settler.settle`, within the write transaction that is open on `connection`."""
    call = f"settle:{call_id}"
    known = calls.recall(connection, call, now.wall)
    if known is not None:
        return calls.repeat_answers(known), False
    changes = Changes(now, caps)
    answers = _judge_all(connection, settlements, brought, changes)
    changes.write(connection)
    calls.remember(connection, call, calls.write_answers(answers), now.wall)
    return answers, changes.brings_work


def _judge_all(
    connection: sqlite3.Connection,
    settlements: Sequence[tuple[JobLease, Settlement]],
    brought: dict[int, list[NewMessage]],
    changes: Changes,
) -> list[Settled]:
    facts = read_facts(connection, [lease for lease, _ in settlements])
    answers = []
    for place, (lease, settlement) in enumerate(settlements):
        fact = facts.get(number(lease))
        answer = judge(fact, lease, changes.now)
        answers.append(answer)
        if fact is None or answer is not Settled.OK:
            continue
        _note(changes, fact, lease, settlement)
        if lease.guards is not None:
            changes.unguard(fact, lease, settlement)
        if place in brought:
            changes.bring(fact, settlement, brought[place])
        # The next settlement of this message in the same call meets its new state.
        facts[fact.seq] = fact.forfeited(changes.now) if type(settlement) is Forfeit else None
    return answers


def _note(changes: Changes, fact: Fact, lease: JobLease, settlement: Settlement) -> None:
    if type(settlement) is Ack:
        changes.ack(fact, lease)
    else:
        changes.add(fact.seq, fact.queue, settlement)
