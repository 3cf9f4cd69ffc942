"""tests/faults/rows.md: each row of docs/faults.md names tests, which are there and say that they are that row's."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "faults.md"
DETAILS = ROOT / "tests" / "faults" / "rows.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
ROW = re.compile(r"\| (\d+) \|")
BROKERS = {"sqlite", "redis", "redis-cluster", "postgres", "beanstalk", "servicebus"}


def rows(page: Path = DETAILS) -> dict[int, list[str]]:
    """Number → cells."""
    lines = [line for line in page.read_text("utf-8").splitlines() if ROW.match(line)]
    return {int(line.split("|")[1]): [cell.strip() for cell in line.strip("|").split("|")] for line in lines}


def marked() -> dict[int, set[str]]:
    """Row → tests of tests/faults that say they are its, as `file::function`."""
    found = defaultdict(set)
    for file in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in _numbers(node):
                    found[number].add(f"faults/{file.name}::{node.name}")
    return found


def _numbers(test: ast.FunctionDef) -> list[int]:
    """The arguments of its `row` markers."""
    calls = [mark for mark in test.decorator_list if isinstance(mark, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.row"]
    numbers = [ast.literal_eval(argument) for call in marks for argument in call.args]
    assert numbers, f"{test.name} does not say which row it shows"
    return numbers


def test_the_rows_are_numbered_and_include_all_that_the_tests_show() -> None:
    assert sorted(rows()) == list(range(1, len(rows()) + 1))
    assert marked().keys() <= rows().keys(), "tests of rows that the page does not have"


def test_the_page_for_users_has_the_same_rows() -> None:
    page = rows(PAGE)
    assert {number: cells[1] for number, cells in page.items()} == {
        number: cells[1] for number, cells in rows().items()
    }
    assert all(len(cells) == 3 and cells[2] for cells in page.values())


@pytest.mark.parametrize("number", sorted(rows()))
def test_a_row_is_full_and_names_the_tests_that_are_its(number: int) -> None:
    cells = rows()[number]
    assert len(cells) == 6, cells
    assert all(cells[:5]), f"row {number} lacks a cell"
    named = {f"{file}::{test}" for file, test in NAMED.findall(cells[2])}
    assert cells[2].count("::") == len(NAMED.findall(cells[2])), "a name that is not written as a test is"
    assert {name for name in named if name.startswith("faults/")} == marked()[number]
    for name in named:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8"), f"row {number}: there is no {name}"


@pytest.mark.parametrize("number", sorted(rows()))
def test_a_row_names_the_brokers_that_its_tests_run_on(number: int) -> None:
    named = set(re.findall(r"[\w-]+", rows()[number][3].partition(";")[0])) & BROKERS
    run = {broker for name in marked()[number] for broker in _brokers(name)}
    assert named >= run, f"row {number} does not say that it is shown on {', '.join(sorted(run - named))}"


def _brokers(name: str) -> set[str]:
    """What its `on` marker says."""
    file, _, function = name.partition("::")
    for node in ast.parse((ROOT / "tests" / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            text = " ".join(ast.unparse(mark) for mark in node.decorator_list if "mark.on(" in ast.unparse(mark))
            return {broker for broker in BROKERS if f"'{broker}'" in text}
    return set()


# --- the figures ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "figures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RESULTS = """<testsuites><testsuite>
<testcase classname="tests.faults.test_a" name="test_b[redis]@group"><properties>
<property name="figure: ready again" value="0.031 s"/><property name="figure: ready again" value="0.5 s"/>
<property name="figure: ready again" value="0.04 s"/><property name="other" value="1"/></properties></testcase>
<testcase classname="tests.faults.test_a" name="test_b[sqlite]"><properties>
<property name="figure: ready again" value="1234.5 s"/></properties></testcase>
</testsuite></testsuites>"""


def test_figures_stand_in_the_rows_of_their_tests(figures: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text(RESULTS)
    measured = "| 1 | x | `faults/test_a.py::test_b` | all | y |  |"
    unmeasured = "| 2 | x | `faults/test_a.py::test_c` | all | y | z |"
    page = f"{measured}\n{unmeasured}\ntext"

    made = figures.rewritten(page, figures.read(results))

    assert made.splitlines() == [
        "| 1 | x | `faults/test_a.py::test_b` | all | y | ready again 0.04 … 0.5 s (redis), 1,234 s (sqlite) |",
        unmeasured,
        "text",
    ]
