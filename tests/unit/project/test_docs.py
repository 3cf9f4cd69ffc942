"""The docs: a picture is that of the code. Generated tables and names are checked by scripts/check."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path

import jobpool.broker.backend
from jobpool.broker.opening import GROUP
from jobpool_backends import PLACES

ROOT = Path(__file__).resolve().parents[3]


def picture(text: str | None, first: str, last: str) -> str:
    """The lines of a drawing, from the one that holds `first` to the one that holds `last`."""
    lines = (text or "").splitlines()
    start = next(number for number, line in enumerate(lines) if first in line)
    end = next(number for number, line in enumerate(lines) if number > start and last in line)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def test_the_picture_of_a_messages_states_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    first, last = "enqueue ──► WAITING", "ack ──► gone"

    assert picture(page, first, last) == picture(jobpool.broker.backend.__doc__, first, last)


def test_the_table_of_our_own_backends_is_that_of_the_entry_points() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"][GROUP] == PLACES
