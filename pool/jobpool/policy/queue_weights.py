"""The queue to fetch from first, and how much: each gets starts by its weight, and lends what it does not use. Pure.

Stride scheduling. A queue's pass grows by what it got over its weight, and the smallest pass goes first. So the passes
of queues that always have something stay together, and their shares are as their weights.
A queue that had nothing for a while is not owed what it missed: its pass is raised to that of the others.
"""

from __future__ import annotations

from collections.abc import Mapping


class QueueWeights:
    """The turns of the queues. For one thread."""

    def __init__(self, queues: tuple[tuple[str, float], ...]) -> None:
        self._weights = dict(queues)
        self._passes = dict.fromkeys(self._weights, 0.0)
        self._now = 0.0
        self._empty: set[str] = set()

    def add(self, queues: Mapping[str, float]) -> None:
        """Add those of these queues, with their weights, that are not there yet."""
        for name, weight in queues.items():
            self._weights.setdefault(name, weight)
            self._passes.setdefault(name, self._now)

    def order(self) -> list[str]:
        """Return all queues, the one whose turn it is first."""
        return sorted(self._passes, key=self._passes.__getitem__)

    def share(self, queue: str, count: int) -> int:
        """Return how many of `count` messages to ask `queue` for; at least 1.

        While heavier queues have something, a light one gets its part of a batch. A whole one would be its due of many
        rounds, for which the others would wait.
        """
        weight = self._weights[queue]
        heaviest = max((self._weights[name] for name in self._weights if name not in self._empty), default=weight)
        return count if heaviest <= weight else max(1, int(count * weight / heaviest))

    def took(self, queue: str, count: int) -> None:
        """Note that `count` messages came from `queue`."""
        start = max(self._passes[queue], self._now)
        self._now = start
        self._passes[queue] = start + count / self._weights[queue]
        self._empty.discard(queue)

    def found_nothing(self, queue: str) -> None:
        """Note that there was nothing to fetch from `queue`, or that it may not be fetched from now."""
        self._empty.add(queue)
