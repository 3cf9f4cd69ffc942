"""How much of a long row runs by default: the rest waits for `--all` (see docs/contributing.md)."""

from __future__ import annotations

import os
from typing import Any

import pytest

ALL = "POOLTEST_ALL" in os.environ
"""Set by tests/conftest.py before a test is imported."""


def examples(number: int) -> int:
    """Return how many examples to draw: `number` with `--all`, else a third of it."""
    return number if ALL else max(1, number // 3)


def more(*rows: tuple[Any, ...]) -> list[Any]:
    """Mark rows of a table that are one more of a kind."""
    return [pytest.param(*row, marks=pytest.mark.more) for row in rows]
