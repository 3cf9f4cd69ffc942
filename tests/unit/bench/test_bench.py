"""The benchmarks' tables: well formed, whatever the numbers are. No test looks at a time."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from bench import efficiency, report
from bench.figures import Figure, Section, Target, median, percentile, ratio
from bench.plan import Plan
from rich.console import Console


def figure(value: float, target: Target | None = None) -> Figure:
    return Figure("a figure", value, "ms", value, value, 1, target)


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        pytest.param(Target("≥", 2), 2, True, id="at least, reached"),
        pytest.param(Target("≥", 2), 1.9, False, id="at least, missed"),
        pytest.param(Target("≤", 2), 2, True, id="at most, reached"),
        pytest.param(Target("≤", 2), 2.1, False, id="at most, missed"),
        pytest.param(Target(">", 2), 2, False, id="more than, equal"),
        pytest.param(None, 2, None, id="no target"),
    ],
)
def test_a_figure_says_whether_its_target_is_met(target: Target | None, value: float, met: bool | None) -> None:
    assert figure(value, target).met is met


def test_a_percentile_is_a_sample_that_was_seen() -> None:
    samples = [float(n) for n in range(1, 201)]

    assert [percentile("x", "ms", samples, p).value for p in (50, 90, 99, 100)] == [100, 180, 198, 200]
    assert percentile("x", "ms", [7.0], 99).value == 7


def test_a_ratio_is_taken_within_each_round() -> None:
    assert ratio("x", [1.0, 20.0, 3.0], [2.0, 10.0, 2.0]).value == 1.5


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (100.0, "100"), (2.5, "2.5"), (0.01234, "0.0123"), (0.0, "0")]
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert report.number(value) == text


def test_the_tables_of_the_readme_are_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\n### restart: old\n### memory: kept\n{report.END}\nafter\n")
    sections = [Section("restart", "a title", [figure(3, Target("≤", 2))], ["a note"])]

    report.write_readme(readme, sections, {"cores": 2})
    report.write_readme(readme, sections, {"cores": 2})

    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("### memory: kept\n") == text.count("### restart: a title\n") == 1
    assert text.count("Measured: cores 2") == 1
    assert "| a figure | 3 ms |  | 1 | ≤ 2 ms | NO |" in text.splitlines()


def test_a_readme_without_a_place_for_tables_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing")

    with pytest.raises(ValueError, match="no place for tables"):
        report.write_readme(readme, [], {})

    assert readme.read_text() == "nothing"


def test_a_tiny_benchmark_makes_a_table_and_json() -> None:
    section = efficiency.run(Plan(tiny=True))
    out = StringIO()

    report.show(section, Console(file=out, width=120))
    told = json.loads(report.as_json([section], report.machine()))

    assert "memory://" in out.getvalue()
    assert told["machine"]["cores"] >= 1
    (found,) = told["sections"]
    assert found["name"] == "efficiency"
    assert [f["count"] for f in found["figures"]] == [1, 1, 1, 1, 2]
    assert all(f["low"] <= f["value"] <= f["high"] for f in found["figures"])


def test_a_median_knows_what_it_was_made_of() -> None:
    assert median("x", "ms", [3.0, 1.0, 2.0]) == Figure("x", 2.0, "ms", 1.0, 3.0, 3)
