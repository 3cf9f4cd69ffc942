"""Check the names in the docs: links, tests, rooms, rows. Print what is wrong, and exit 1 when something is.

python scripts/names.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
FAULT_ROW = re.compile(r"\| (\d+) \|")
BROKERS = {"sqlite", "redis", "redis-cluster", "postgres", "beanstalk", "servicebus"}
NAMING = (TESTS / "guarantees.md", TESTS / "faults" / "rows.md", TESTS / "dead-letters.md")
"""Pages that name tests; those for users name none."""


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


# --- links ------------------------------------------------------------------------------------------------------------


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def wrong_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(text_of(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            yield f"{page.name} links to {link}, which is not there"


def unreachable_pages() -> Iterator[str]:
    readme, index = text_of(ROOT / "README.md"), (DOCS / "index.md").read_text("utf-8").splitlines()
    for page in PAGES:
        is_shown = page.parent == DOCS and page.name != "index.md"  # that is the site's first page: the README
        if is_shown and f"](docs/{page.name}" not in readme:
            yield f"README.md does not link to docs/{page.name}"
        if is_shown and page.stem not in index:
            yield f"docs/index.md does not list {page.stem}: the site would not show it"


def missing_rooms() -> Iterator[str]:
    page = text_of(DOCS / "architecture.md")
    for path in (ROOT / "pool" / "jobpool").iterdir():
        name = f"`{path.stem}/`" if path.is_dir() else f"`{path.stem}`"
        is_room = path.suffix == ".py" or (path / "__init__.py").exists()  # not what a former version has left behind
        if is_room and not path.name.startswith("_") and name not in page:
            yield f"{name} is missing in docs/architecture.md, 'Where the code lives'"


# --- tests ------------------------------------------------------------------------------------------------------------


def missing_tests(page: Path) -> Iterator[str]:
    """Look for each test that a page names; every name must be written as a test is, so that none is passed over."""
    named = TEST.findall(text_of(page))
    if text_of(page).count("::") != len(named):
        yield f"{page.name} has a name with :: that is not written as `folder/file.py::test_name`"
    for file, test in sorted(set(named)):
        path = TESTS / file
        if not path.is_file() or not re.search(rf"^\s*def {test}\(", text_of(path), re.MULTILINE):
            yield f"{page.name} names {file}::{test}, which is not there"


def named_for_users() -> Iterator[str]:
    for page in PAGES:
        if page.name != "contributing.md" and TEST.search(text_of(page)):
            yield f"{page.name} is for users and names a test"


def promises(page: Path) -> list[list[str]]:
    """Return the cells of each row that makes a promise."""
    lines = [line for line in text_of(page).splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in rows if not set(row[0]) <= set("- ") and row[0] != "promise"]


def unshown_promises() -> Iterator[str]:
    """Compare docs/guarantees.md with tests/guarantees.md, where the tests of these and other promises are."""
    told, shown = promises(DOCS / "guarantees.md"), promises(TESTS / "guarantees.md")
    if len(told) <= 30:
        yield f"docs/guarantees.md has {len(told)} promises only: is its table still read?"
    for missing in sorted({row[0] for row in told} - {row[0] for row in shown}):
        yield f"tests/guarantees.md does not have the promise: {missing}"
    for row in told:
        if len(row) != 2 or not all(row):
            yield f"docs/guarantees.md does not say how this is kept: {row[0]}"
    for row in shown:
        if len(row) != 2 or not TEST.search(row[1]):
            yield f"tests/guarantees.md does not say which test shows this: {row[0]}"


def unknown_sections() -> Iterator[str]:
    """Compare the sections of tests/dead-letters.md with those of the page for users."""
    told, shown = (re.findall(r"^## .+", text_of(root / "dead-letters.md"), re.MULTILINE) for root in (DOCS, TESTS))
    if not shown or not set(shown) <= set(told):
        yield "tests/dead-letters.md has no sections, or some that docs/dead-letters.md does not have"


# --- rows of faults ---------------------------------------------------------------------------------------------------


def fault_rows(page: Path) -> dict[int, list[str]]:
    """Return the cells of each row of a page, by its number."""
    lines = [line for line in text_of(page).splitlines() if FAULT_ROW.match(line)]
    return {int(line.split("|")[1]): [cell.strip() for cell in line.strip("|").split("|")] for line in lines}


def fault_tests() -> Iterator[tuple[str, ast.FunctionDef]]:
    for file in sorted((TESTS / "faults").glob("test_*.py")):
        for node in ast.parse(text_of(file)).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield f"faults/{file.name}::{node.name}", node


def marked(node: ast.FunctionDef, marker: str) -> list[ast.Call]:
    calls = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == f"pytest.mark.{marker}"]


def wrong_faults() -> Iterator[str]:
    """Compare tests/faults/rows.md with the markers of tests: rows, tests and brokers."""
    rows = fault_rows(TESTS / "faults" / "rows.md")
    tests: dict[int, set[str]] = defaultdict(set)
    brokers: dict[int, set[str]] = defaultdict(set)
    for name, node in fault_tests():
        numbers = [ast.literal_eval(word) for call in marked(node, "row") for word in call.args]
        if not numbers:
            yield f"{name} does not say which row it shows"
        for number in numbers:
            tests[number].add(name)
            text = " ".join(map(ast.unparse, marked(node, "on")))
            brokers[number] |= {broker for broker in BROKERS if f"'{broker}'" in text}
    if sorted(rows) != list(range(1, len(rows) + 1)) or not tests.keys() <= rows.keys():
        yield "tests/faults/rows.md: its rows are not 1, 2, 3 …, or tests show rows that it does not have"
    for number, cells in rows.items():
        yield from wrong_fault_row(number, cells, tests[number], brokers[number])


def wrong_fault_row(number: int, cells: list[str], tests: set[str], brokers: set[str]) -> Iterator[str]:
    if len(cells) != 6 or not all(cells[:5]):
        yield f"tests/faults/rows.md, row {number}: it lacks a cell"
        return
    named = {f"{file}::{test}" for file, test in TEST.findall(cells[2])}
    if {name for name in named if name.startswith("faults/")} != tests:
        yield f"tests/faults/rows.md, row {number}: it names other tests than those that are marked as its"
    told = set(re.findall(r"[\w-]+", cells[3].partition(";")[0])) & BROKERS
    if not told >= brokers:
        yield f"tests/faults/rows.md, row {number}: it does not say {', '.join(sorted(brokers - told))}"


def main() -> int:
    wrong = [line for page in PAGES for line in wrong_links(page)]
    wrong += [
        *unreachable_pages(),
        *missing_rooms(),
        *named_for_users(),
        *unshown_promises(),
        *unknown_sections(),
        *wrong_faults(),
    ]
    wrong += [line for page in NAMING for line in missing_tests(page)]
    print("\n".join(wrong) or "every name in the docs is there")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
