"""The rows that the pool's loop gathers for history between two visits of the writer. Bounded; once a job, so short."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_ITEMS = 20_000
MOST_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Feed(Generic[T]):
    """The newest `keep` items of each name; only the loop's thread touches it.

    Items pushed out by newer ones of the same name would not have been kept anyway, and are not counted. Items that
    find no room (`MOST_ITEMS`, `MOST_BYTES`) are dropped, and counted in `dropped`.
    """

    keep: int
    most_items: int = MOST_ITEMS
    most_bytes: int = MOST_BYTES
    dropped: int = 0
    items: int = 0
    bytes: int = 0
    _names: dict[str, deque[tuple[T, int]]] = field(default_factory=dict)

    def add(self, name: str, item: T, size: int) -> None:
        """Keep an item of about `size` bytes, if there is room."""
        mine = self._names.get(name)
        if mine is not None and len(mine) >= self.keep:
            self._push_out(mine)
        if self.items >= self.most_items or self.bytes + size > self.most_bytes:
            self.dropped += 1
            return
        if mine is None:
            mine = self._names[name] = deque()
        mine.append((item, size))
        self.items += 1
        self.bytes += size

    def _push_out(self, mine: deque[tuple[T, int]]) -> None:
        _, size = mine.popleft()
        self.items -= 1
        self.bytes -= size

    def take(self) -> list[T]:
        """Take everything, in order within each name."""
        names, self._names = self._names, {}
        self.items = self.bytes = 0
        return [item for mine in names.values() for item, _ in mine]
