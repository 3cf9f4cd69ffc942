"""The results of a benchmark: figures with a unit, their samples, and their target."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Target:
    """A bound: at least, or at most, `limit`."""

    sign: Literal["≥", "≤", ">"]
    limit: float

    def met_by(self, value: float) -> bool:
        if self.sign == "≤":
            return value <= self.limit
        return value >= self.limit if self.sign == "≥" else value > self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Attributes:
        name: Of the measurement.
        value: The median, percentile or reading that stands for it.
        unit: Of `value`, `low` and `high`; "" for a ratio.
        low: Smallest sample.
        high: Largest sample.
        count: How many samples it was made of.
        target: The goal, if there is one.
    """

    name: str
    value: float
    unit: str
    low: float
    high: float
    count: int
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """True if the target is met; None = there is none."""
        return None if self.target is None else self.target.met_by(self.value)


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of one benchmark, and sentences that belong to them.

    `others`: the part of the machine's CPU time that went to other programs meanwhile, 0 to 1.
    """

    name: str
    title: str
    figures: list[Figure]
    notes: list[str] = field(default_factory=list)
    others: float = 0.0


def median(name: str, unit: str, samples: Sequence[float], target: Target | None = None) -> Figure:
    """Return the median of samples."""
    return _figure(name, statistics.median(samples), unit, samples, target)


def percentile(name: str, unit: str, samples: Sequence[float], percent: int, target: Target | None = None) -> Figure:
    """Return the smallest sample that `percent` of all samples do not exceed (nearest rank)."""
    ranked = sorted(samples)
    value = ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]
    return _figure(f"{name}, p{percent}", value, unit, samples, target)


def ratio(name: str, above: Sequence[float], below: Sequence[float], target: Target | None = None) -> Figure:
    """Return the median of the quotients of each round: what disturbs a round disturbs both."""
    return median(name, "", [a / b for a, b in zip(above, below, strict=True)], target)


def _figure(name: str, value: float, unit: str, samples: Sequence[float], target: Target | None) -> Figure:
    return Figure(name, value, unit, min(samples), max(samples), len(samples), target)
