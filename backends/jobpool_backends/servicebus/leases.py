"""The leases of this client, and when they end.

The broker knows a lock only by its token. So a settlement that is late by our own clock, or comes from another owner,
never reaches it. A lease ends by this machine's clock, counted from before the request. The broker tells the end of a
lock on *its* clock. A sooner end than expected means that the queue's locks are shorter than the option `lock` says, or
that the clocks differ. The sooner end is taken then: it costs a renewal at most. A lease that ends too late costs a job
that runs twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from jobpool.clock import Clock
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.receiver import Delivery
from jobpool_backends.servicebus.records import Record

EXPIRED_KEPT_S = 60.0  # time for which a lease that ran out is known as one that did
CLOCK_TOLERANCE_S = 1.0  # difference of clocks below which nobody is warned
WARNING_PAUSE_S = 600.0

log = logging.getLogger("jobpool.servicebus")


@dataclass(slots=True, eq=False)
class Held:
    """One lease.

    Attributes:
        copied: A copy of the message is in a queue already, for a settlement that was not carried out to its end.
    """

    delivery: Delivery
    record: Record
    queue: str
    sequence: int
    owner_token: str
    expires_at: float  # on the backend's clock, as the lease's
    deliveries: int  # all so far, this one included
    copied: bool = False
    lost: bool = False  # the broker said that the lock is gone


class HeldLeases:
    """The leases of one backend. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, dict[int, Held]] = {}
        self._pid = os.getpid()

    def of(self, queue: str) -> Mapping[int, Held]:
        """Return the leases of a queue that still run, by the messages' sequence numbers."""
        now = self._clock.boot()
        with self._lock:
            return {number: held for number, held in self._held.get(queue, {}).items() if held.expires_at > now}

    def add(self, held: Held) -> None:
        """Add a new lease. An older one on the same message must have run out."""
        with self._lock:
            leases = self._held.setdefault(held.queue, {})
            old = leases.get(held.sequence)
            leases[held.sequence] = held
        _forget(old)

    def put_back(self, held: Held) -> None:
        """Hold again a lease that was taken and not settled; unless its message was fetched again meanwhile."""
        with self._lock:
            superseded = self._held.setdefault(held.queue, {}).setdefault(held.sequence, held) is not held
        _forget(held if superseded else None)

    def find(self, lease: JobLease) -> Held | Settled:
        """Return the lease's entry, or the refusal if there is none."""
        with self._lock:
            return self._find(lease)

    def take(self, lease: JobLease) -> Held | Settled:
        """Take the lease's entry out, so that nobody else settles it; or return the refusal."""
        with self._lock:
            held = self._find(lease)
            if isinstance(held, Held):
                del self._held[held.queue][held.sequence]
            return held

    def drop(self, held: Held) -> None:
        """Remove a lost lease; the broker refuses a settlement under way."""
        with self._lock:
            if self._held.get(held.queue, {}).get(held.sequence) is not held:
                return
            del self._held[held.queue][held.sequence]
        _forget(held)

    def prune(self, queue: str) -> None:
        """Forget what ran out a while ago, and tell its receiver."""
        long_ago = self._clock.boot() - EXPIRED_KEPT_S
        with self._lock:
            leases = self._held.get(queue, {})
            gone = [held for held in leases.values() if held.expires_at < long_ago]
            for held in gone:
                del leases[held.sequence]
        for held in gone:
            _forget(held)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()

    def _find(self, lease: JobLease) -> Held | Settled:
        if self._pid != os.getpid():  # forked: these are the parent's, and so are the connections that settle them
            self._pid = os.getpid()
            self._held.clear()
        held = self._held.get(lease.queue, {}).get(lease.token) if isinstance(lease.token, int) else None
        if held is None:
            return Settled.NOT_IN_FLIGHT
        if self._clock.boot() >= held.expires_at:
            return Settled.EXPIRED
        return held if held.owner_token == lease.owner_token else Settled.NOT_OWNER


def _forget(held: Held | None) -> None:
    if held is not None:
        held.delivery.receiver.forget(1)


@dataclass(frozen=True, slots=True)
class RequestTime:
    """The time of a request, by the backend's clock and by `time.monotonic()`."""

    boot: float
    wall: float
    mono: float

    def earlier(self, mono: float) -> RequestTime:
        """Return the same for what was asked for before this already; itself for what was asked for since."""
        back = max(0.0, self.mono - mono)
        return RequestTime(self.boot - back, self.wall - back, mono) if back else self


class Locks:
    """The clock that computes ends of leases, from the backend's."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._warned: dict[str, float] = {}
        self.noticed: dict[str, float] = {}
        """Of each queue with short locks, the least time that one had left when it was given, by our clock."""

    def now(self) -> RequestTime:
        """Return the time, to be taken before a request."""
        return RequestTime(self._clock.boot(), self._clock.wall(), time.monotonic())

    def end(self, queue: str, asked: RequestTime, locked_until: float | None) -> float:
        """Return when a lease ends on the backend's clock; `locked_until` on the broker's, None = it did not say."""
        length = self._address.lock
        if locked_until is not None and locked_until - asked.wall < length - CLOCK_TOLERANCE_S:
            left = locked_until - asked.wall
            self._warn(queue, left)
            length = left if left > 0 else length
        return asked.boot + length

    def _warn(self, queue: str, left: float) -> None:
        now = time.monotonic()
        self.noticed[queue] = min(left, self.noticed.get(queue, left))
        if now - self._warned.get(queue, -WARNING_PAUSE_S) >= WARNING_PAUSE_S:
            self._warned[queue] = now
            log.warning(
                "%s: queue %s locked a message for %.1f s instead of %g s: set the option lock to what the queue's lock"
                " duration is, or set this machine's clock, which is ahead of the service's",
                self._address.title,
                queue,
                left,
                self._address.lock,
            )
