"""An app with 30 MB of Python objects made at its import, as a table or a small model would be."""

from __future__ import annotations

import sys

from bench.apps import noop

__all__ = ["TABLE", "noop"]

MEGABYTES = 30


def _table(size: int) -> dict[int, str]:
    table: dict[int, str] = {}
    row = 0
    used = 0
    while used < size:
        text = f"row {row:08d} " + "x" * 150
        table[row] = text
        used += sys.getsizeof(text) + 100  # the key, and its part of the dict
        row += 1
    return table


TABLE = _table(MEGABYTES * 1_000_000)
