"""tests/guarantees.md names tests for every promise of docs/guarantees.md, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guarantees.md"
APPENDIX = ROOT / "tests" / "guarantees.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows(page: Path) -> list[list[str]]:
    """Return the cells of every row that makes a promise."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if not set(row[0]) <= set("- ") and row[0] != "promise"]


def named() -> list[tuple[str, str]]:
    return sorted(set(NAMED.findall(APPENDIX.read_text("utf-8"))))


@pytest.mark.parametrize("file", sorted({file for file, _ in named()}))
def test_every_test_that_is_named_is_there(file: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file(), f"tests/guarantees.md names tests/{file}"
    there = set(re.findall(r"^\s*def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE))
    missing = [name for where, name in named() if where == file and name not in there]
    assert not missing, f"tests/{file} has no {', '.join(missing)}"


def test_every_promise_says_how_it_is_kept() -> None:
    assert len(rows(PAGE)) > 60
    for row in rows(PAGE):
        assert len(row) == 2, row
        assert all(row), row


def test_every_promise_has_tests_that_show_it() -> None:
    assert [row[0] for row in rows(APPENDIX)] == [row[0] for row in rows(PAGE)]
    for row in rows(APPENDIX):
        assert len(row) == 2, row
        assert NAMED.search(row[1]), f"no test shows: {row[0]}"


def test_every_name_is_written_as_a_test_is() -> None:
    """So that none is passed over by the check above."""
    text = APPENDIX.read_text("utf-8")
    assert text.count("::") == len(NAMED.findall(text))


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_pages_for_users_name_no_tests(page: Path) -> None:
    assert not NAMED.findall(page.read_text("utf-8"))
