"""The effect of each settlement on its message. The owner holds the lock, and has judged the lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobpool.broker.values import NewMessage
from jobpool.message.guards import IDEMPOTENCY_TTL
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settlement
from jobpool_backends.memory.store import Store
from jobpool_backends.memory.values import Entry
from jobpool_backends.shared import delay_micros, micros


class Settler:
    """The settler of one store's messages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verbs: dict[type, Callable[[Entry, JobLease, Any, int, int], None]] = {
            Ack: self._ack,
            Nack: self._nack,
            Abandon: self._abandon,
            Release: self._release,
            Forfeit: self._forfeit,
        }

    def settle(
        self,
        entry: Entry,
        lease: JobLease,
        settlement: Settlement,
        brought: Sequence[NewMessage],
        boot: int,
        now: int,
    ) -> None:
        """Do it, and add what it brings."""
        if type(settlement) is Move:
            self._store.replace(entry, brought[0], now)
            return
        self._verbs[type(settlement)](entry, lease, settlement, boot, now)
        self._store.add(brought, now)

    def _ack(self, entry: Entry, lease: JobLease, ack: Ack, boot: int, now: int) -> None:
        del ack, boot
        guards = lease.guards
        keep = micros(guards.keep if guards else IDEMPOTENCY_TTL)
        if guards and guards.key is not None:
            self._store.places.done.put((entry.queue, guards.key), True, now + keep)
        self._store.finish(entry, keep, now)

    def _nack(self, entry: Entry, lease: JobLease, nack: Nack, boot: int, now: int) -> None:
        del lease, boot
        entry.attempts += 1
        entry.last_error = nack.error if nack.error is not None else entry.last_error
        entry.cause = nack.cause if nack.cause is not None else entry.cause
        self._store.place(entry, now + delay_micros(nack.delay), now)

    def _abandon(self, entry: Entry, lease: JobLease, abandon: Abandon, boot: int, now: int) -> None:
        del lease, boot
        entry.attempts += abandon.attempts
        entry.cause = abandon.cause if abandon.cause is not None else entry.cause
        self._store.bury(entry, abandon.reason, abandon.error, now)

    def _release(self, entry: Entry, lease: JobLease, release: Release, boot: int, now: int) -> None:
        del boot
        if lease.guards and not release.begun:
            self._store.places.give_back(entry, lease.guards)
        entry.begun |= release.begun
        self._store.place(entry, now + delay_micros(release.delay), now)

    def _forfeit(self, entry: Entry, lease: JobLease, forfeit: Forfeit, boot: int, now: int) -> None:
        del lease
        entry.deadline = boot
        entry.deadline_wall = now
        entry.forfeited = forfeit.cause
