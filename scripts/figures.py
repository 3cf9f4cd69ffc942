"""Put the figures of the tests of faults into the tables of tests/faults/rows.md.

python scripts/figures.py results.xml            show the column
python scripts/figures.py results.xml --write    write it

`pytest tests/faults --junit-xml results.xml` makes `results.xml`.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[1] / "tests" / "faults" / "rows.md"
PREFIX = "figure: "
NAMED = re.compile(r"`(faults/test_\w+\.py)::(test_\w+)`")
MEASURED = 5
"""The column."""

Figures = dict[tuple[str, str], dict[str, dict[str, list[str]]]]
"""File and function of a test → figure → parameters of the test → values, each with its unit."""


def read(results: Path) -> Figures:
    """Return all figures of a run."""
    found: Figures = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/") + ".py"
        test, _, parameters = case.get("name", "").partition("[")
        for named in case.iter("property"):
            name = named.get("name", "")
            if name.startswith(PREFIX):
                found[file, test][name.removeprefix(PREFIX)][_without_group(parameters)].append(named.get("value", ""))
    return found


def _without_group(parameters: str) -> str:
    """Turn `redis]@group` into `redis`: pytest-xdist adds a group to a name."""
    return parameters.partition("]")[0]


def cell(shown_by: str, figures: Figures) -> str:
    """Format the figures of one row's tests."""
    return "; ".join(part for file, test in NAMED.findall(shown_by) for part in _of_test(figures.get((file, test), {})))


def _of_test(figures: dict[str, dict[str, list[str]]]) -> Iterator[str]:
    for name, by_parameters in figures.items():
        values = [f"{_summary(values)}{f' ({where})' if where else ''}" for where, values in by_parameters.items()]
        yield f"{name} {', '.join(values)}"


def _summary(values: list[str]) -> str:
    """Format one value as it is; of several the median and the highest."""
    numbers = sorted(float(value.split(" ", 1)[0]) for value in values)
    unit = values[0].partition(" ")[2]
    middle = _short(statistics.median(numbers))
    text = middle if len(numbers) == 1 else f"{middle} … {_short(numbers[-1])}"
    return f"{text} {unit}".rstrip()


def _short(number: float) -> str:
    """Format with three digits, and no exponent."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def rewritten(page: str, figures: Figures) -> str:
    """Return the page with the column made anew; a row whose tests measured nothing in this run keeps what it has."""
    return "\n".join(_row(line, figures) for line in page.split("\n"))


def _row(line: str, figures: Figures) -> str:
    cells = line.strip("|").split("|")
    if not re.match(r"\| \d+ \|", line) or len(cells) <= MEASURED:
        return line
    measured = cell(cells[2], figures)
    if measured:
        cells[MEASURED] = f" {measured} "
    return f"|{'|'.join(cells)}|"


if __name__ == "__main__":
    made = rewritten(PAGE.read_text("utf-8"), read(Path(sys.argv[1])))
    if "--write" in sys.argv[2:]:
        PAGE.write_text(made, "utf-8")
    else:
        print("\n".join(line for line in made.splitlines() if re.match(r"\| \d+ \|", line)))
