"""The local limits of queues: how much may be fetched from each, so that what cannot start is not leased.

A queue with a limit has a gate in each pool. It lets through what this pool may still run, and shuts when the key
store refuses for the whole queue, until there may be room again: so nothing is leased and given back in a circle, and
no other queue waits. The key store alone decides what starts; a limit that is wrong costs a round trip.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from jobpool.message.guards import Begin, Begun
from jobpool.policy.limits import Limits, contention_delay

MAX_SHUT_S = 5.0
"""Seconds after which a limit is tried though nobody here gave a place back: another pool may have."""

MIN_SHUT_S = 0.02
"""Seconds: a quick rate is asked for in batches, not start by start."""

MAX_WINDOW = 1 << 16


class LocalLimit:
    """One queue's. `most`: places that all pools share; None = no such limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._mine = 0
        self._until = 0.0
        self._by_rate = False
        self._refusals = 0
        self._window = MAX_WINDOW

    def room(self, now: float) -> int:
        """How many may be fetched now."""
        if now < self._until:
            return 0
        return self._window if self._most is None else max(0, min(self._window, self._most - self._mine))

    def wait(self, now: float) -> float:
        """Seconds until it opens by itself; 0.0 = it is open. Places of this pool's own open it earlier."""
        if now < self._until:
            return self._until - now
        return 0.0 if self.room(now) else MAX_SHUT_S

    def may_open_early(self, now: float) -> bool:
        """It is shut, and a settlement of this pool's own could open it."""
        refused = now < self._until and not self._by_rate
        full = self._most is not None and self._mine >= self._most
        return self._mine > 0 and (refused or full)

    def hold(self, mine: int) -> None:
        """So many places are this pool's now; with fewer than before there may be room."""
        if mine < self._mine and not self._by_rate:
            self._until = 0.0
        self._mine = mine

    def given_back(self) -> None:
        """A start was not used, and is not counted any more."""
        self._until = 0.0

    def begun(self, granted: int, refused: Begun | None, now: float) -> None:
        """Note what one fetch came to: how many may start, and the first refusal of the queue's own limits, if any."""
        if refused is None:
            self._refusals = 0
            self._window = min(MAX_WINDOW, 2 * self._window)
            return
        self._refusals = 0 if granted else self._refusals + 1
        self._window = max(1, granted)
        self._by_rate = refused.answer is Begin.LIMITED
        if self._by_rate:
            self._until = now + max(MIN_SHUT_S, refused.after)
        else:
            self._until = now + contention_delay(max(1, self._refusals), MAX_SHUT_S)


class LocalLimits:
    """The local limits of all limited queues, for the loop and the fetch thread. Times: CLOCK_MONOTONIC seconds."""

    def __init__(self, limits: Limits) -> None:
        queues = {*limits.concurrency, *limits.rates}
        self._of = {queue: LocalLimit(limits.concurrency.get(queue)) for queue in queues}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Return whether any queue has one."""
        return bool(self._of)

    def room(self, queue: str, count: int, now: float) -> int:
        """How many of `count` messages may be fetched."""
        limit = self._of.get(queue)
        if limit is None:
            return count
        with self._lock:
            return min(count, limit.room(now))

    def wait(self, queue: str, now: float) -> float:
        """Seconds until the queue may be fetched from; 0.0 = now."""
        limit = self._of.get(queue)
        if limit is None:
            return 0.0
        with self._lock:
            return limit.wait(now)

    def may_open_early(self, now: float) -> bool:
        """Return whether some queue waits for a settlement of this pool's own."""
        with self._lock:
            return any(limit.may_open_early(now) for limit in self._of.values())

    def begun(self, queue: str, granted: int, refused: Begun | None, now: float) -> None:
        """As `LocalLimit.begun`."""
        limit = self._of.get(queue)
        if limit is not None:
            with self._lock:
                limit.begun(granted, refused, now)

    def hold(self, mine: Mapping[str, int], given_back: Iterable[str], now: float) -> bool:
        """How many guarded deliveries of each queue this pool holds, and where starts were given back.

        Returns whether a limit that was shut is open now.
        """
        opened = False
        with self._lock:
            for queue, limit in self._of.items():
                shut = not limit.room(now)
                limit.hold(mine.get(queue, 0))
                if queue in given_back:
                    limit.given_back()
                opened = opened or (shut and limit.room(now) > 0)
        return opened
