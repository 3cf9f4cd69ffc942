"""docs/guarantees.md: every promise names tests, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guarantees.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of every row that makes a promise."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if not set(row[0]) <= set("- ") and row[0] != "promise"]


def named() -> list[tuple[str, str]]:
    return sorted(set(NAMED.findall(PAGE.read_text("utf-8"))))


@pytest.mark.parametrize("file", sorted({file for file, _ in named()}))
def test_every_test_that_is_named_is_there(file: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file(), f"docs/guarantees.md names tests/{file}"
    there = set(re.findall(r"^\s*def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE))
    missing = [name for where, name in named() if where == file and name not in there]
    assert not missing, f"tests/{file} has no {', '.join(missing)}"


def test_every_promise_says_how_it_is_kept_and_which_test_shows_it() -> None:
    assert len(rows()) > 60
    for row in rows():
        assert len(row) == 3, row
        assert all(row), row
        assert NAMED.search(row[2]), f"no test shows: {row[0]}"


def test_every_name_is_written_as_a_test_is() -> None:
    """So that none is passed over by the check above."""
    text = PAGE.read_text("utf-8")
    assert text.count("::") == len(NAMED.findall(text))
