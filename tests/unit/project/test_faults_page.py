"""tests/faults/rows.md: its column of figures is made of a run."""

from __future__ import annotations

from pathlib import Path

from scripts import figures

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
