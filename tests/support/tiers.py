"""How much of a long row runs by default: the rest waits for `--all` (see docs/contributing.md)."""

from __future__ import annotations

import os

ALL = "POOLTEST_ALL" in os.environ
"""Set by tests/conftest.py before a test is imported."""


def examples(number: int) -> int:
    """Return how many examples to draw: `number` with `--all`, else a third of it."""
    return number if ALL else max(1, number // 3)
