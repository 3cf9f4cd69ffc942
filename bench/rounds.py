"""Contestants that take turns. What is compared is compared within one round: a busy machine disturbs all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Samples = dict[str, list[dict[str, Any]]]
Contestants = Mapping[str, Callable[[], dict[str, Any]]]


def interleaved(contestants: Contestants, turns: int, samples: Samples | None = None) -> Samples:
    """One sample of each contestant a round; each round begins with another one.

    Args:
        contestants: Name → how to take a sample.
        turns: How many rounds.
        samples: Is filled as they come, for a contestant that goes by what others did.
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
    """Jobs a second of each."""
    return {name: [found["rate"] for found in each] for name, each in samples.items()}
