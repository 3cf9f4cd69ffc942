"""Say which row of a table failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def row(*values: object) -> Iterator[None]:
    """Add what tells this row from the others to whatever fails within."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row of {', '.join(map(repr, values))}")
        raise
