"""What a test draws by chance, drawn again: it prints its seed, and takes it back."""

from __future__ import annotations

import os
import random

SEED = "POOLTEST_SEED"
"""The environment variable that gives a seed back."""


def printed_seed() -> int:
    """A new one, or what `POOLTEST_SEED` holds. It draws the same again; when each thing happens is the machine's."""
    given = os.environ.get(SEED)
    seed = int(given) if given else random.randrange(2**32)
    print(f"seed {seed}: {SEED}={seed} draws the same again")
    return seed
