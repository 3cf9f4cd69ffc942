"""Which queue to fetch from first: each gets starts by its weight, and lends what it does not use. Pure."""

from __future__ import annotations


class Rotation:
    """Stride scheduling: a queue's pass grows by what it got over its weight, and the smallest pass goes first.

    A queue that had nothing for a while is not owed what it missed: its pass is raised to that of the others.
    """

    def __init__(self, queues: tuple[tuple[str, float], ...]) -> None:
        self._weights = dict(queues)
        self._passes = dict.fromkeys(self._weights, 0.0)
        self._now = 0.0

    @property
    def names(self) -> list[str]:
        return list(self._weights)

    def order(self) -> list[str]:
        """All queues, the one whose turn it is first."""
        return sorted(self._passes, key=self._passes.__getitem__)

    def took(self, queue: str, count: int) -> None:
        """`count` messages came from `queue`."""
        start = max(self._passes[queue], self._now)
        self._now = start
        self._passes[queue] = start + count / self._weights[queue]
