"""Plain functions, as any library has them: nothing here knows of jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def count_words(path: str, *, most: int = 3) -> dict[str, int]:
    """The words that a text has most, and how often."""
    return dict(Counter(Path(path).read_text().lower().split()).most_common(most))
