"""One histogram: plain counts between edges. Written by one thread; other threads read a `copy`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """`counts[i]` values were at most `edges[i]` and above the edge before; the last count is of those above all."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...], counts: Sequence[int] = (), total: float = 0.0) -> None:
        self.edges = edges
        self.counts = list(counts) or [0] * (len(edges) + 1)
        self.total = total

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        return Histogram(self.edges, self.counts, self.total)

    def without(self, earlier: Histogram) -> Histogram:
        """Return the difference to `earlier`, an older copy of this one."""
        counts = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        return Histogram(self.edges, counts, self.total - earlier.total)

    def plus(self, other: Histogram) -> Histogram:
        """Return both together; their edges are the same."""
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.edges, counts, self.total + other.total)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper edge, how many were at most that), with `+Inf` at the end: as Prometheus wants it."""
        so_far = 0
        rows = []
        for edge, count in zip([*(repr(float(edge)) for edge in self.edges), "+Inf"], self.counts, strict=True):
            so_far += count
            rows.append((edge, float(so_far)))
        return rows

    def quantile(self, share: float) -> float | None:
        """Return the upper edge below which `share` (0 to 1) of the values are; infinity above all edges; None: no
        values.
        """
        wanted = share * self.count
        so_far = 0
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            so_far += count
            if count and so_far >= wanted:
                return edge
        return None
