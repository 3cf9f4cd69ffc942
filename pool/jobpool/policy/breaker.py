"""Circuit breakers: they stop asking a broker that keeps failing, and find out with one probe at a time if it is back.

    CLOSED ── five failures in a row ───────► OPEN ── cooldown over, or a good answer elsewhere ──► HALF_OPEN
       ▲                                       ▲                                                        │
       └──────────── the probe succeeded ──────┼────────────────────────────────────────────────────────┤
                                               └── the probe failed: cooldown doubled, up to the longest ┘

No clock is read: every method is told `now`, in seconds on a clock that never steps back, such as `time.monotonic()`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from enum import StrEnum

FAILURES_TO_OPEN = 5  # in a row
FIRST_COOLDOWN_S = 2.0  # doubled each time that a probe fails
MAX_COOLDOWN_S = 60.0  # a probe whose end nobody told within it counts as failed
NO_PROBE = -math.inf


class BreakerState(StrEnum):
    """The state of a breaker, which lets through all, nothing, or one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """A breaker. A pool has one for each queue, and asks it before each fetch, and before nothing else.

    Count errors of the guarded thing: `BackendUnavailable` of a fetch, never a handler's failure, and never an empty
    queue, which is a success. A good answer to another call (a settlement, a renewal, a count) shows that it is back:
    `answered` then ends the cooldown early. So a long cooldown spares a broker that is down, and costs nothing once it
    is up.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._cooldown = FIRST_COOLDOWN_S
        self._until = 0.0
        self._probe_until = NO_PROBE
        self._state = BreakerState.CLOSED

    def state(self, now: float) -> BreakerState:
        """Return its state at `now`; looking changes nothing."""
        over = self._state is BreakerState.OPEN and now >= self._until
        return BreakerState.HALF_OPEN if over else self._state

    def wait(self, now: float) -> float:
        """Return the seconds until `allow` may say yes; 0.0 = it would now. Changes nothing."""
        if self._state is BreakerState.CLOSED:
            return 0.0
        return max(0.0, (self._until if self._state is BreakerState.OPEN else self._probe_until) - now)

    def allow(self, now: float) -> bool:
        """Return whether to call now. Yes when half-open is the one probe: tell `succeeded` or `failed` of it."""
        if self._state is BreakerState.CLOSED:
            return True
        if self.wait(now) > 0.0:
            return False
        self._state = BreakerState.HALF_OPEN
        self._probe_until = now + MAX_COOLDOWN_S
        return True

    def succeeded(self, now: float) -> None:
        """Note that a call was answered. One that began before the breaker opened is not a probe, but shows as much."""
        if self._state is BreakerState.OPEN:
            self.answered(now)
            return
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._cooldown = FIRST_COOLDOWN_S

    def failed(self, now: float) -> None:
        """Note that a call failed. One that began before the breaker opened tells nothing new."""
        if self._state is BreakerState.CLOSED:
            self._failures += 1
            if self._failures < FAILURES_TO_OPEN:
                return
        elif self._state is BreakerState.HALF_OPEN and self._probe_until > NO_PROBE:
            self._cooldown = min(MAX_COOLDOWN_S, 2 * self._cooldown)
        else:
            return
        self._state = BreakerState.OPEN
        self._until = now + self._cooldown
        self._probe_until = NO_PROBE

    def answered(self, now: float) -> None:
        """Note a good answer to another call to the same thing: an open breaker is half-open at once."""
        if self._state is BreakerState.OPEN:
            self._state = BreakerState.HALF_OPEN
            self._probe_until = NO_PROBE
            self._until = now


class Breakers:
    """A circuit breaker for each queue. Thread-safe: one thread fetches, another tells what else was answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys_silent: set[str] = set()  # their last failure was of the keys, not of a fetch
        self._breakers: dict[str, CircuitBreaker] = {}

    def allow(self, queue: str, now: float) -> bool:
        """Return whether to fetch from `queue` now. A yes must be followed by `failed` or `succeeded`."""
        if (breaker := self._breakers.get(queue)) is None:
            return True
        with self._lock:
            return breaker.allow(now)

    def wait(self, queue: str, now: float) -> float:
        """Return the seconds until a fetch may be allowed; 0.0 = now."""
        if (breaker := self._breakers.get(queue)) is None:
            return 0.0
        with self._lock:
            return breaker.wait(now)

    def failed(self, queue: str, now: float, *, of_keys: bool = False) -> bool:
        """Note that a fetch from `queue`, or what its messages need besides (`of_keys`), failed; return if it opens."""
        breaker = self._breakers.get(queue) or self._breakers.setdefault(queue, CircuitBreaker())
        with self._lock:
            before = breaker.state(now)
            breaker.failed(now)
            (self._keys_silent.add if of_keys else self._keys_silent.discard)(queue)
            return before is BreakerState.CLOSED and breaker.state(now) is BreakerState.OPEN

    def succeeded(self, queue: str, now: float) -> bool:
        """Note that a fetch from `queue` was answered; return whether its breaker has closed by that."""
        if (breaker := self._breakers.get(queue)) is None:
            return False
        with self._lock:
            before = breaker.state(now)
            breaker.succeeded(now)
            return before is not BreakerState.CLOSED and breaker.state(now) is BreakerState.CLOSED

    def answered(self, queues: Iterable[str], now: float) -> None:
        """Note another answer about these queues: an open breaker lets its probe through at once, but for the keys'."""
        with self._lock:
            for queue in set(queues) - self._keys_silent:
                if (breaker := self._breakers.get(queue)) is not None:
                    breaker.answered(now)
