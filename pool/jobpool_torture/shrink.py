"""From a long schedule that fails to a short one that still does: delta debugging. Pure: running is the caller's.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002): ever smaller pieces are left out, and
a schedule that still fails without a piece stays without it. Runs under real processes do not repeat exactly, so a
schedule that once did not fail may fail. The result is short and has failed; it need not be minimal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


def shrink(faults: Sequence[T], fails: Callable[[list[T]], bool], *, most: int = 100) -> list[T]:
    """Return a part of `faults`, in their order, for which `fails` was true: as short as `most` runs let it become.

    Args:
        faults: A schedule that has failed.
        fails: Runs one, and says whether it failed; it is never asked for the same one twice, nor for all of them.
        most: Runs, >= 0.

    Returns:
        `faults` itself when no shorter one failed. Errors of `fails` are passed on.
    """
    asker = _Asker(fails, most)
    kept = list(faults)
    pieces = 2
    while kept and not asker.is_done:
        shorter = next((part for part in _without_one(kept, pieces) if asker.ask(part)), None)
        if shorter is not None:
            kept, pieces = shorter, max(2, pieces - 1)
        elif pieces >= len(kept):
            break
        else:
            pieces = min(len(kept), 2 * pieces)
    return kept


class _Asker(Generic[T]):
    """A limited number of calls of `fails`, whose answers it remembers."""

    def __init__(self, fails: Callable[[list[T]], bool], most: int) -> None:
        self._fails = fails
        self._left = most
        self._known: set[tuple[int, ...]] = set()

    @property
    def is_done(self) -> bool:
        return self._left <= 0

    def ask(self, part: list[T]) -> bool:
        """Return whether it fails; False where that was asked before, for it did not then."""
        key = tuple(map(id, part))
        if self.is_done or key in self._known:
            return False
        self._known.add(key)
        self._left -= 1
        return self._fails(part)


def _without_one(items: list[T], pieces: int) -> Iterator[list[T]]:
    """Yield `items` without each of `pieces` pieces of nearly the same length; nothing if there is only one item."""
    pieces = min(pieces, len(items))
    edges = [len(items) * index // pieces for index in range(pieces + 1)]
    for begin, end in itertools.pairwise(edges):
        yield items[:begin] + items[end:]
