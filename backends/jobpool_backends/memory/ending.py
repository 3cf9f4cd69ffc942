"""Values that end by themselves, each at a time of its own."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

V = TypeVar("V")
Key = Any
"""Strings, or tuples of them: what can be ordered among its like."""

SPARE = 64
"""Ends of values that were put again since, kept beyond as many as there are values."""


class Ending(Generic[V]):
    """Values by key, times in microseconds. At its end a value is gone."""

    def __init__(self) -> None:
        self._values: dict[Key, tuple[int, V]] = {}
        self._ends: list[tuple[int, Key]] = []

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: Key, value: V, until: int) -> None:
        """Keep it until then, in place of an older one."""
        self._values[key] = until, value
        heappush(self._ends, (until, key))
        if len(self._ends) > 2 * len(self._values) + SPARE:
            self._ends = [(end, known) for known, (end, _) in self._values.items()]
            heapify(self._ends)

    def get(self, key: Key, now: int) -> V | None:
        self._drop(now)
        known = self._values.get(key)
        return known[1] if known is not None and known[0] > now else None

    def pop(self, key: Key, now: int) -> V | None:
        """Remove it; what it was, None when there was none."""
        value = self.get(key, now)
        self._values.pop(key, None)
        return value

    def items(self, now: int) -> Iterator[tuple[Key, V]]:
        self._drop(now)
        return ((key, value) for key, (until, value) in self._values.items() if until > now)

    def _drop(self, now: int) -> None:
        ends = self._ends
        while ends and ends[0][0] <= now:
            until, key = heappop(ends)
            known = self._values.get(key)
            if known is not None and known[0] <= until:  # else it was put again, for longer
                del self._values[key]
