"""Duplicate detection: a message id is taken once in a window of time.

Source: the protocol guide, "Transfers": messages with an id that was seen in the window are dropped silently.
"""

from __future__ import annotations

from collections.abc import Hashable

from servicebus_peer.clock import Clock


class Duplicates:
    """The ids of one queue. `window` in seconds; 0 = nothing is a duplicate."""

    def __init__(self, window: float, clock: Clock) -> None:
        self._window = window
        self._clock = clock
        self._seen: dict[Hashable, float] = {}

    def has(self, message_id: object) -> bool:
        """Whether this id was noted within the window; it is noted now. A message without an id never is one."""
        if not self._window or not isinstance(message_id, Hashable) or message_id is None:
            return False
        now = self._clock.monotonic()
        self._forget(now - self._window)
        if message_id in self._seen:
            return True
        self._seen[message_id] = now
        return False

    def _forget(self, before: float) -> None:
        """They are in the order of their times."""
        while self._seen:
            first = next(iter(self._seen))
            if self._seen[first] > before:
                return
            del self._seen[first]
