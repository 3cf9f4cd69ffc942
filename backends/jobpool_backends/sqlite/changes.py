"""Writes of one call of settlements: verb by verb, not message by message.

Writes for guarded leases, unique keys and moves are made only if there are any.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field, replace

from jobpool.broker.values import NewMessage
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settlement
from jobpool_backends.shared import DeadCaps, delay_micros, micros
from jobpool_backends.sqlite import calls, enqueue, removing
from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.counts import Counts
from jobpool_backends.sqlite.facts import Fact
from jobpool_backends.sqlite.schema import DEAD, DELAYED, LEASED, NO_LEASE, WAITING

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
    died_at = ?, {NO_LEASE}
WHERE seq = ?
"""
_FORFEIT = "UPDATE messages SET boot = ?, deadline = ?, deadline_wall = ?, forfeited = ? WHERE seq = ?"
_PAST = "SELECT last_error, cause FROM messages WHERE seq = ?"
_SPEND = "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?)"
_DONE = "INSERT OR REPLACE INTO done VALUES (?, ?, ?)"
_LEAVE = "DELETE FROM holds WHERE seq = ?"
_UNCOUNT = "DELETE FROM starts WHERE queue = ? AND name = ? AND token = ?"

Row = tuple[int | str | None, ...]


@dataclass(slots=True)
class Changes:
    """Writes of one call, verb by verb."""

    now: Moment
    caps: DeadCaps
    counts: Counts = field(default_factory=Counts)
    acked: list[int] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    nacked: list[Row] = field(default_factory=list)
    released: list[Row] = field(default_factory=list)
    abandoned: list[Row] = field(default_factory=list)
    forfeited: list[Row] = field(default_factory=list)
    buried_in: set[str] = field(default_factory=set)
    moved: list[tuple[int, NewMessage]] = field(default_factory=list)
    new: list[NewMessage] = field(default_factory=list)
    spent: list[Row] = field(default_factory=list)
    done: list[Row] = field(default_factory=list)
    left: list[Row] = field(default_factory=list)
    uncounted: list[Row] = field(default_factory=list)

    @property
    def brings_work(self) -> bool:
        """True if somebody who waits for messages should look."""
        return bool(self.nacked or self.released or self.new or self.moved)

    def add(self, seq: int, queue: str, settlement: Settlement) -> None:
        match settlement:
            case Nack(delay, error, cause):
                state, available_at = self._place(queue, delay)
                self.nacked.append((state, available_at, error, cause, seq))
            case Release(delay, begun):
                state, available_at = self._place(queue, delay)
                self.released.append((state, available_at, begun, seq))
            case Abandon(reason, error, cause):
                self.abandoned.append((reason, settlement.attempts, error, cause, self.now.wall, seq))
                self.buried_in.add(queue)
                self.counts.move(queue, LEASED, DEAD)
            case Forfeit(cause):
                self.forfeited.append((self.now.boot, self.now.boottime, self.now.wall, cause, seq))
            case Move():
                self.counts.remove(queue, LEASED)

    def _place(self, queue: str, delay: float) -> tuple[int, int]:
        later = delay_micros(delay)
        state = DELAYED if later else WAITING
        self.counts.move(queue, LEASED, state)
        return state, self.now.wall + later

    def ack(self, fact: Fact, lease: JobLease) -> None:
        self.acked.append(fact.seq)
        self.counts.remove(fact.queue, LEASED)
        if fact.given:
            self.ended.append(lease.id)
        if fact.unique_key is not None:
            keep = lease.guards.keep if lease.guards else IDEMPOTENCY_TTL
            self.spent.append((fact.queue, fact.unique_key, lease.id, self.now.wall + micros(keep)))

    def bring(self, fact: Fact, settlement: Settlement, brought: list[NewMessage]) -> None:
        if type(settlement) is Move:
            self.moved.append((fact.seq, brought[0]))
        else:
            self.new += brought

    def unguard(self, fact: Fact, lease: JobLease, settlement: Settlement) -> None:
        """End the grants to this lease; an ack leaves its key done."""
        guards = lease.guards or Guards()
        self.left.append((fact.seq,))
        if guards.key is not None and type(settlement) is Ack:
            self.done.append((fact.queue, guards.key, self.now.wall + micros(guards.keep)))
        if type(settlement) is Release and not settlement.begun:
            self.uncounted += [(fact.queue, rate.name, lease.owner_token) for rate in guards.rates]

    def write(self, connection: sqlite3.Connection) -> None:
        if self.acked:
            removing.delete(connection, self.acked)
        if self.ended:
            calls.remember_ended(connection, self.ended, self.now.wall)
        connection.executemany(_NACK, self.nacked)
        connection.executemany(_RELEASE, self.released)
        connection.executemany(_ABANDON, self.abandoned)
        connection.executemany(_FORFEIT, self.forfeited)
        if self.spent:
            connection.executemany(_SPEND, self.spent)
        if self.left:
            connection.executemany(_LEAVE, self.left)
            connection.executemany(_DONE, self.done)
            connection.executemany(_UNCOUNT, self.uncounted)
        if self.moved:
            self._write_moves(connection)
        if self.buried_in and self.caps:
            self.counts.write(connection)
            removing.evict(connection, sorted(self.buried_in), self.caps, self.now.wall)
        if self.new:
            enqueue.add(connection, self.new, self.now.wall, self.counts)
        self.counts.write(connection)

    def _write_moves(self, connection: sqlite3.Connection) -> None:
        """Write moves, even of known ids: a message that moves is never lost."""
        moved = [_with_past(connection, seq, new) for seq, new in self.moved]
        removing.delete(connection, [seq for seq, _ in self.moved])
        enqueue.insert(connection, moved, self.now.wall, self.counts)


def _with_past(connection: sqlite3.Connection, seq: int, new: NewMessage) -> NewMessage:
    """Return `new` with the last error and cause that the message has, unless it brings newer ones."""
    error, cause = connection.execute(_PAST, (seq,)).fetchone()
    return replace(
        new,
        last_error=new.last_error if new.last_error is not None else error,
        cause=new.cause if new.cause is not None else cause,
    )
