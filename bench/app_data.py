"""Python objects made at the import of an app, as a table or a small model would be. Imports the standard library."""

from __future__ import annotations

import os
import sys

VARIABLE = "BENCH_TABLE"
"""Of the environment: set = an app of a peer has the table."""

MEGABYTES = 30


def made() -> dict[int, str]:
    """Return the table."""
    table: dict[int, str] = {}
    row = 0
    used = 0
    while used < MEGABYTES * 1_000_000:
        text = f"row {row:08d} " + "x" * 150
        table[row] = text
        used += sys.getsizeof(text) + 100  # the key, and its part of the dict
        row += 1
    return table


def made_if_asked() -> dict[int, str]:
    """Return the table if the environment asks for it; else an empty one."""
    return made() if VARIABLE in os.environ else {}
