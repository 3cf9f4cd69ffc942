"""Jobs of mixed lengths, which sleep, so that few cores suffice; and how much of the workers' time they use."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.note_file import note

Mix = Sequence[tuple[float, float]]
"""Kinds of jobs: weight, and how long one lasts, in seconds."""

SEED = 18


def mean(mix: Mix) -> float:
    """Return how long a job lasts on average, in seconds."""
    return sum(weight * seconds for weight, seconds in mix) / sum(weight for weight, _ in mix)


def lengths(mix: Mix, jobs: int) -> list[float]:
    """Return how long each job lasts, in seconds: in random order, the same each time."""
    weights = [weight for weight, _ in mix]
    return random.Random(SEED).choices([seconds for _, seconds in mix], weights, k=jobs)


def nap(path: str, seconds: float) -> None:
    """Be a job: sleep, and note when that began."""
    begun = time.monotonic()
    time.sleep(seconds)
    note(path, begun, seconds)


def share_used(path: Path, workers: int) -> float:
    """Return the part of the workers' time in which jobs slept, 0 to 1, from the first begin to the last.

    Until then others wait. A sleep counts for what was asked, not for what a busy machine has made of it.
    """
    naps = [(float(begun), float(seconds)) for begun, seconds in map(str.split, path.read_text().splitlines())]
    first, last = min(naps)[0], max(naps)[0]
    return sum(min(seconds, last - begun) for begun, seconds in naps) / (workers * (last - first))
