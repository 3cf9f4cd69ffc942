"""A circuit breaker for each queue; the lease thread asks, the loop tells what else was answered."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from jobpool.master.events import BreakerClosed, BreakerOpened
from jobpool.master.inbox import Inbox
from jobpool.policy.breaker import BreakerState, CircuitBreaker


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """As `CircuitBreaker`; a threshold of 0 = no breakers."""

    threshold: int = 5
    cooldown: float = 2.0
    max_cooldown: float = 60.0


class Breakers:
    """Thread-safe. What opens and closes is told to the loop. Times: CLOCK_MONOTONIC seconds.

    Raises `ConfigurationError` as `CircuitBreaker`.
    """

    def __init__(self, queues: Iterable[str], settings: BreakerSettings, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._breakers = (
            {queue: CircuitBreaker(settings.threshold, settings.cooldown, settings.max_cooldown) for queue in queues}
            if settings.threshold
            else {}
        )

    def allow(self, queue: str, now: float) -> bool:
        """Whether to fetch from `queue` now. A yes must be followed by `failed` or `succeeded`."""
        if queue not in self._open:
            return True
        with self._lock:
            return self._breakers[queue].allow(now)

    def wait(self, queue: str, now: float) -> float:
        """Seconds until a fetch may be allowed; 0.0 = now."""
        if queue not in self._open:
            return 0.0
        with self._lock:
            return self._breakers[queue].wait(now)

    def failed(self, queue: str, error: str, now: float) -> None:
        """A fetch from `queue` was not answered."""
        breaker = self._breakers.get(queue)
        if breaker is None:
            return
        with self._lock:
            breaker.failed(now)
            opened = breaker.state(now) is BreakerState.OPEN and queue not in self._open
            if opened:
                self._open.add(queue)
        if opened:
            self._inbox.put(BreakerOpened(queue, breaker.cooldown, error))

    def succeeded(self, queue: str, now: float) -> None:
        """A fetch from `queue` was answered."""
        breaker = self._breakers.get(queue)
        if breaker is None:
            return
        with self._lock:
            breaker.succeeded(now)
            closed = queue in self._open and breaker.state(now) is BreakerState.CLOSED
            if closed:
                self._open.discard(queue)
        if closed:
            self._inbox.put(BreakerClosed(queue))

    def answered(self, queues: Iterable[str], now: float) -> None:
        """Something else about these queues was answered: an open breaker lets its probe through at once."""
        with self._lock:
            for queue in self._open.intersection(queues):
                self._breakers[queue].answered(now)
