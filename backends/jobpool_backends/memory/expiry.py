"""Things that end by themselves, each at its own time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Key = Any
"""Strings, or tuples of them: what can be ordered among its like."""

SPARE_HEAP_ENTRIES = 64
"""Ends that were put off since, kept beyond as many as there are keys."""


class Expiries(Generic[K]):
    """The end of each key, in microseconds; the length is the room that takes."""

    def __init__(self) -> None:
        self._until: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, key: K, until: int) -> None:
        """Set the end of a key, whatever it was before."""
        self._until[key] = until
        heappush(self._heap, (until, key))
        if len(self._heap) > 2 * len(self._until) + SPARE_HEAP_ENTRIES:
            self._heap = [(end, known) for known, end in self._until.items()]
            heapify(self._heap)

    def forget(self, key: K) -> None:
        self._until.pop(key, None)

    def due(self, now: int) -> Iterator[tuple[K, int]]:
        """Yield each key that has ended, and when; told once."""
        while self._heap and self._heap[0][0] <= now:
            until, key = heappop(self._heap)
            if self._until.get(key) == until:
                del self._until[key]
                yield key, until


class Expiring(Generic[V]):
    """Values by key, times in microseconds. At its end a value is gone."""

    def __init__(self) -> None:
        self._values: dict[Key, V] = {}
        self._ends: Expiries[Key] = Expiries()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: Key, value: V, until: int) -> None:
        """Keep it until then, in place of an older one."""
        self._values[key] = value
        self._ends.put(key, until)

    def get(self, key: Key, now: int) -> V | None:
        self._drop(now)
        return self._values.get(key)

    def pop(self, key: Key, now: int) -> V | None:
        """Remove it; what it was, None when there was none."""
        self._drop(now)
        self._ends.forget(key)
        return self._values.pop(key, None)

    def items(self, now: int) -> Iterable[tuple[Key, V]]:
        self._drop(now)
        return self._values.items()

    def _drop(self, now: int) -> None:
        for key, _ in self._ends.due(now):
            del self._values[key]
