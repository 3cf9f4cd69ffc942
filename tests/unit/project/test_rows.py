"""tests/faults/rows.md: its figures are made of a run of the tests, and a section of it of runs of scripts/soak."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts import figures, soaked

from jobpool_torture.result import MEANINGS, Result
from jobpool_torture.schedule import KINDS

RESULTS = """<testsuites><testsuite>
<testcase classname="tests.faults.test_a" name="test_b[redis]@group"><properties>
<property name="figure: ready again" value="0.031 s"/><property name="figure: ready again" value="0.5 s"/>
<property name="figure: ready again" value="0.04 s"/><property name="other" value="1"/></properties></testcase>
<testcase classname="tests.faults.test_a" name="test_b[sqlite]"><properties>
<property name="figure: ready again" value="1234.5 s"/></properties></testcase>
</testsuite></testsuites>"""


def test_figures_stand_in_the_rows_of_their_tests(tmp_path: Path) -> None:
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


def a_run(backend: str, **more: Any) -> dict[str, Any]:
    result = Result(struck=Counter({"child.kill": 30, "broker.restart": 7}), late=[1.5], **more)
    told = {"backend": backend, "minutes": 20.0, "seed": 9, "versions": {"jobpool": "0.1.0", "python": "3.11.7"}}
    return told | result.to_dict() | {"jobs": asdict(result.tally)}


def test_the_page_has_its_place_and_only_that_changes() -> None:
    page = soaked.PAGE.read_text("utf-8")
    made = soaked.rewritten(page, f"{soaked.BEGIN}new\n{soaked.END}")
    before, _, rest = page.partition(soaked.BEGIN)
    assert made == f"{before}{soaked.BEGIN}new\n{soaked.END}{rest.partition(soaked.END)[2]}"


def test_each_run_is_a_column_and_every_count_is_in_a_row() -> None:
    left_out = {"net.cut": "sqlite:// has no network"}
    made = soaked.section([a_run("sqlite:////q.db", left_out=left_out), a_run("postgresql://a@b/c", duplicates=1234)])
    lines = made.splitlines()
    assert "$ scripts/soak postgres --minutes 20 --seed 9" in lines
    assert "| | SQLite | Postgres |" in lines
    assert f"| kinds of fault | 2 of {len(KINDS)}; left out: sqlite:// has no network | 2 of {len(KINDS)} |" in lines
    assert "| run more than once to the end | 0 | 1,234 |" in lines
    assert {line.count("|") for line in lines if line.startswith("|")} == {4}
    assert set(MEANINGS) <= set(re.findall(r"[A-Z-]+", made))
