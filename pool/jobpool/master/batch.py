"""Settlements on their way to the settle thread: gathered for a moment while short jobs stream. Pure.

Each call of the settle thread is a transaction of the broker's, and wakes the thread. While jobs stream, acks may
therefore wait for company: 10 ms at most, the half of what the look-ahead holds. What is no ack never waits.
"""

from __future__ import annotations

import math

from jobpool.master.delivery import Delivery
from jobpool.message.settlement import Ack, Settlement

MAX_LINGER_S = 0.01
"""Seconds for which an ack may wait."""

LOOKAHEAD_SHARE = 4
"""So great a part of the look-ahead is company enough, and two settlements at least."""


class Batch:
    """`due`: CLOCK_MONOTONIC seconds at which `take` is to be called; infinity while there is nothing."""

    def __init__(self) -> None:
        self._work: list[tuple[Delivery, Settlement]] = []
        self.due = math.inf

    def add(self, delivery: Delivery, settlement: Settlement, now: float, ahead: int) -> None:
        """Put one in. `ahead`: the look-ahead's size; 0 = jobs are long or few, and nothing is gained by waiting."""
        self._work.append((delivery, settlement))
        if not ahead or type(settlement) is not Ack or len(self._work) >= max(2, ahead // LOOKAHEAD_SHARE):
            self.due = now
        elif len(self._work) == 1:
            self.due = now + MAX_LINGER_S

    def take(self) -> list[tuple[Delivery, Settlement]]:
        """Everything, in the order in which it came; empty from here."""
        work, self._work = self._work, []
        self.due = math.inf
        return work
