"""The one line of an error text that says what happened."""

from __future__ import annotations

LONGEST = 500
"""Characters of it that are kept."""


def headline(text: str | None) -> str | None:
    """The line that says what happened: the last of a traceback, the first of anything else."""
    lines = (text or "").strip().splitlines()
    if not lines:
        return None
    return lines[-1 if lines[0].startswith("Traceback") else 0][:LONGEST]
