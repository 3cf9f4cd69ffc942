"""Contestants that take turns. Comparisons are made within one round: a busy machine disturbs all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Samples = dict[str, list[dict[str, Any]]]
Contestants = Mapping[str, Callable[[], dict[str, Any]]]


def interleaved(contestants: Contestants, turns: int, samples: Samples | None = None) -> Samples:
    """Return one sample of each contestant a round; each round begins with another one.

    Args:
        contestants: Name → how to take a sample.
        turns: How many rounds.
        samples: A list to fill at once, for a contestant that goes by the results of others.
    """
    found: Samples = {} if samples is None else samples
    found.update({name: [] for name in contestants})
    names = list(contestants)
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(contestants[name]())
    return found


def rates(samples: Samples) -> dict[str, list[float]]:
    """Return jobs a second of each."""
    return {name: [found["rate"] for found in each] for name, each in samples.items()}
