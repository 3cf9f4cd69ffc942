"""The end of a lease: by this machine's clock, from before the request, after the time that the queues lock a message.

The broker tells the end of a lock on *its* clock. An end sooner than expected means that the queue's locks are shorter
than the option `lock` says, or that the clocks differ. The sooner end is taken then: a lease that ends too soon costs a
renewal, and one that ends too late costs a job that runs twice.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from jobpool.clock import Clock
from jobpool_backends.servicebus.address import Address

CLOCK_TOLERANCE_S = 1.0
"""Seconds by which clocks may differ before it is worth a word."""

WARNING_PAUSE_S = 600.0
"""Seconds between two warnings about a queue."""

log = logging.getLogger("jobpool.servicebus")


@dataclass(frozen=True, slots=True)
class ShortLock:
    """About the locks of a queue: the shortest time that one had left when it was given, by our clock, and when."""

    shortest: float
    at: float


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
    """The clock that computes ends of leases.

    Args:
        clock: The backend's.
    """

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._warned: dict[str, float] = {}
        self.noticed: dict[str, ShortLock] = {}
        """By queue."""

    def now(self) -> RequestTime:
        """Return the time, to be taken before a request."""
        return RequestTime(self._clock.boot(), self._clock.wall(), time.monotonic())

    def end(self, queue: str, asked: RequestTime, locked_until: float | None) -> float:
        """Return when a lease ends on the backend's clock; `locked_until` on the broker's, None = it did not say."""
        length = self._address.lock
        if locked_until is not None and locked_until - asked.wall < length - CLOCK_TOLERANCE_S:
            left = locked_until - asked.wall
            self._notice(queue, left)
            length = left if left > 0 else length
        return asked.boot + length

    def _notice(self, queue: str, left: float) -> None:
        now = time.monotonic()
        known = self.noticed.get(queue)
        if known is None or left < known.shortest:
            self.noticed[queue] = ShortLock(left, now)
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
