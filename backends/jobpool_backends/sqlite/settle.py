"""Ending leases, and holding them longer.

A call reads its messages, judges each and writes what changed, all within one write transaction: nothing can come
between the judgement and the write. It writes verb by verb, not message by message, and what few messages need (guarded
leases, unique keys, moves) only if there are any.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import NewMessage
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.results import Kept
from jobpool.message.settlement import CANCELLED, Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.shared import REPEATED, SETTLED, DeadCaps, delay_micros, micros, with_past
from jobpool_backends.sql import number_of
from jobpool_backends.sqlite import batches, enqueue
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.fetch import owner_token
from jobpool_backends.sqlite.results import Results
from jobpool_backends.sqlite.schema import DEAD, DELAYED, EACH, LEASED, NO_LEASE, WAITING
from jobpool_backends.sqlite.step import ClockReading, Step, Sweeper

_RENEW = "UPDATE messages SET boot = ?, deadline = ?, deadline_wall = ?, ttl = ? WHERE seq = ?"
_FACTS = "seq, state, holder, boot, deadline, deadline_wall, given, queue, unique_key, batch"
_READ = f"SELECT {_FACTS} FROM messages WHERE seq IN {EACH}"
_NACK = f"""
UPDATE messages
SET state = ?, available_at = ?, attempts = attempts + 1, last_error = coalesce(?, last_error),
    cause = coalesce(?, cause), {NO_LEASE}
WHERE seq = ?
"""
_RELEASE = f"UPDATE messages SET state = ?, available_at = ?, begun = begun OR ?, {NO_LEASE} WHERE seq = ?"
_ABANDON = f"""
UPDATE messages
SET state = 3, reason = ?, attempts = attempts + ?, last_error = coalesce(?, last_error), cause = coalesce(?, cause),
    died_at = ?, batch = NULL, {NO_LEASE}
WHERE seq = ?
"""
_FORFEIT = "UPDATE messages SET boot = ?, deadline = ?, deadline_wall = ?, forfeited = ? WHERE seq = ?"
_PAST = "SELECT last_error, cause, batch FROM messages WHERE seq = ?"
_SPEND = "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?)"
_KEEP = "INSERT OR REPLACE INTO results VALUES (?, ?, ?)"
_DONE = "INSERT OR REPLACE INTO done VALUES (?, ?, ?)"
_RELEASE_PLACES = "DELETE FROM holds WHERE seq = ?"
_UNCOUNT = "DELETE FROM starts WHERE queue = ? AND name = ? AND token = ?"

_LETTERS = {answer: letter for letter, answer in SETTLED.items()}

Row = tuple[int | str | bytes | None, ...]


class Settler:
    def __init__(self, database: Database, sweeper: Sweeper, caps: DeadCaps, results: Results) -> None:
        self._database = database
        self._sweeper = sweeper
        self._results = results
        self._caps = caps

    def settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        with self._database.write() as step:
            self._sweeper.sweep(step)
            answers = settle_within(step, settlements, brought, call_id, self._caps)
            self._results.kept += step.ends_jobs
        return answers

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        expires_at, length = self._database.clock.boot() + ttl, micros(ttl)
        with self._database.write() as step:
            now, numbers = step.now, list(map(number_of, leases))
            facts = read_facts(step, numbers)
            live = [bool(judge(facts.get(seq), lease, now)) for seq, lease in zip(numbers, leases, strict=True)]
            deadlines = (now.boot, now.boottime + length, now.wall + length, length)
            step.connection.executemany(_RENEW, [(*deadlines, lease.token) for lease in compress(leases, live)])
        pairs = zip(leases, live, strict=True)
        return [replace(lease, expires_at=expires_at) if lives else None for lease, lives in pairs]


def settle_within(
    step: Step, settlements: Settlements, brought: Brought, call_id: str, caps: DeadCaps
) -> list[Settled]:
    call = f"settle:{call_id}"
    known = step.recall(call)
    if known is not None:
        return [REPEATED[letter] for letter in known]
    changes, now, answers = _Changes(step), step.now, []
    numbers = [number_of(lease) for lease, _ in settlements]
    facts = read_facts(step, numbers)
    for place, (lease, settlement) in enumerate(settlements):
        fact = facts.get(numbers[place])
        answer = judge(fact, lease, now)
        answers.append(answer)
        if fact is None or answer is not Settled.OK:
            continue
        if type(settlement) is Ack:
            changes.ack(fact, lease)
            if settlement.result is not None:
                changes.keep(lease.id, settlement.result)
        else:
            changes.add(fact, lease.id, settlement)
        if lease.guards is not None:
            changes.release_guards(fact, lease.guards, lease.owner_token, settlement)
        if type(settlement) is Move:
            changes.moved.append((fact.seq, brought[place][0]))
        else:
            changes.new += brought.get(place, ())
        # The next settlement of this message in the same call meets its new state.
        facts[fact.seq] = None
        if type(settlement) is Forfeit:
            facts[fact.seq] = fact._replace(boot=now.boot, deadline=now.boottime, deadline_wall=now.wall)
    changes.write(caps)
    step.remember(call, "".join([_LETTERS[answer] for answer in answers]))
    return answers


class Fact(NamedTuple):
    """A message when a call begins. Without a lease the columns of one are None, under a claim boot and deadline."""

    seq: int
    state: int
    holder: str
    boot: int
    deadline: int
    deadline_wall: int
    given: int
    queue: str
    unique_key: str | None
    batch: str | None


def read_facts(step: Step, numbers: Sequence[int]) -> dict[int, Fact | None]:
    return {row[0]: Fact._make(row) for row in step.execute(_READ, (json.dumps(numbers),))}


def judge(fact: Fact | None, lease: JobLease, now: ClockReading) -> Settled:
    """Return whether this lease may settle, by the contract's order of refusals."""
    if fact is None or fact.state != LEASED:
        return Settled.NOT_IN_FLIGHT
    if now.is_past(fact.boot, fact.deadline, fact.deadline_wall):
        return Settled.EXPIRED
    return Settled.OK if lease.owner_token == owner_token(fact.holder, fact.seq) else Settled.NOT_OWNER


class _Changes(Struct):
    """Writes of one call, verb by verb."""

    step: Step
    acked: list[int] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    rows: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    moved: list[tuple[int, NewMessage]] = field(default_factory=list)
    new: list[NewMessage] = field(default_factory=list)
    buried_in: set[str] = field(default_factory=set)

    def ack(self, fact: Fact, lease: JobLease) -> None:
        self.acked.append(fact.seq)
        self.step.counts.add(fact.queue, LEASED, -1)
        if fact.batch is not None:
            batches.end(self.step, fact.batch, lease.id, batches.SUCCEEDED)
        if fact.given:
            self.ended.append(lease.id)
        if fact.unique_key is not None:
            keep = lease.guards.keep if lease.guards else IDEMPOTENCY_TTL
            self.rows[_SPEND].append((fact.queue, fact.unique_key, lease.id, self.step.now.wall + micros(keep)))

    def keep(self, ident: str, result: Kept) -> None:
        self.rows[_KEEP].append((ident, self.step.now.wall + micros(result.ttl), result.record))
        self.step.ends_jobs += 1

    def add(self, fact: Fact, ident: str, settlement: Settlement) -> None:
        now, seq, queue = self.step.now, fact.seq, fact.queue
        match settlement:
            case Nack(delay, error, cause):
                self.rows[_NACK].append((*self._place(queue, delay), error, cause, seq))
            case Release(delay, begun):
                self.rows[_RELEASE].append((*self._place(queue, delay), begun, seq))
            case Abandon(reason, error, cause):
                self.rows[_ABANDON].append((reason, settlement.attempts, error, cause, now.wall, seq))
                self.buried_in.add(queue)
                if fact.batch is not None:
                    how = batches.CANCELLED if reason == CANCELLED else batches.FAILED
                    batches.end(self.step, fact.batch, ident, how)
                self.step.ends_jobs += 1
                self.step.counts.move(queue, LEASED, DEAD)
            case Forfeit(cause):
                self.rows[_FORFEIT].append((now.boot, now.boottime, now.wall, cause, seq))
            case Move():
                self.step.counts.add(queue, LEASED, -1)

    def _place(self, queue: str, delay: float) -> tuple[int, int]:
        later = delay_micros(delay)
        state = DELAYED if later else WAITING
        self.step.counts.move(queue, LEASED, state)
        self.step.frees_jobs = True
        return state, self.step.now.wall + later

    def release_guards(self, fact: Fact, guards: Guards, owner_token: str, settlement: Settlement) -> None:
        """End the grants to this lease; an ack leaves its key done."""
        self.rows[_RELEASE_PLACES].append((fact.seq,))
        if guards.key is not None and type(settlement) is Ack:
            self.rows[_DONE].append((fact.queue, guards.key, self.step.now.wall + micros(guards.keep)))
        if type(settlement) is Release and not settlement.begun:
            self.rows[_UNCOUNT] += [(fact.queue, rate.name, owner_token) for rate in guards.rates]

    def write(self, caps: DeadCaps) -> None:
        step = self.step
        step.delete(self.acked, self.ended)
        for sql, rows in self.rows.items():
            step.connection.executemany(sql, rows)
        if self.moved:  # even under known ids: a message that moves is never lost
            pasts = [step.execute(_PAST, (seq,)).fetchone() for seq, _ in self.moved]
            moved = [
                replace(with_past(new, past[:2]), batch=past[2])
                for (_, new), past in zip(self.moved, pasts, strict=True)
            ]
            step.delete([seq for seq, _ in self.moved])
            enqueue.insert(step, moved)
        if self.buried_in:
            step.evict(sorted(self.buried_in), caps)
        if self.new:
            enqueue.add(step, self.new, brought=True)
