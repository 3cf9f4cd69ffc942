"""The docs: links lead somewhere, generated tables are current, pictures are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import jobpool
import jobpool.broker.backend
import jobpool.master.slots

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text("utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in headings(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda page: page.name)
def test_every_page_can_be_reached_from_the_readme(page: Path) -> None:
    assert f"](docs/{page.name}" in (ROOT / "README.md").read_text("utf-8")


def test_the_generated_tables_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "tables.py", "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def picture(text: str | None, first: str, last: str) -> str:
    """The lines of a drawing, from the one that holds `first` to the one that holds `last`."""
    lines = (text or "").splitlines()
    start = next(number for number, line in enumerate(lines) if first in line)
    end = next(number for number, line in enumerate(lines) if number > start and last in line)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


@pytest.mark.parametrize(
    ("code", "first", "last"),
    [
        pytest.param(jobpool.master.slots.__doc__, "EMPTY ──spawn", "▲────", id="slots"),
        pytest.param(jobpool.broker.backend.__doc__, "enqueue ──► WAITING", "ack ──► gone", id="states of a message"),
    ],
)
def test_the_pictures_are_those_of_the_code(code: str | None, first: str, last: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")

    assert picture(page, first, last) == picture(code, first, last)


def test_the_map_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = [path for path in (ROOT / "pool" / "jobpool").iterdir() if not path.name.startswith("_")]

    for path in rooms:
        name = f"`{path.stem}/`" if path.is_dir() else f"`{path.stem}`"
        assert name in page, f"{name} is missing in docs/architecture.md, 'Where the code lives'"


def test_the_version_is_one() -> None:
    assert f'version = "{jobpool.__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")
