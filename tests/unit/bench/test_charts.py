"""The charts: page and pictures fit the recorded tables, and a peer that wins is named, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import __main__ as command
from bench import charts, comparison, recorded_tables, report
from bench.comparison import Bar, Chart, Panel
from bench.figures import Figure, Section
from bench.peers import environment
from bench.programs import sample
from bench.recorded_tables import Recorded
from click.testing import CliRunner

LARGEST_PICTURE = 60_000
TABLES = recorded_tables.sections(charts.TABLES.read_text("utf-8"))
ABOUT = {"date": "2026-11-21 12:25 UTC", "cores": "2", "cpu": "a CPU", "python": "3.11.7", "redis": "7.0.15"}


def table(**values: float) -> Recorded:
    figures = {name: Figure(name, value, "s", value / 2, value * 2, 5) for name, value in values.items()}
    return Recorded(figures, "Other programs had 0% of the machine meanwhile.", ABOUT)


def chart(more_is_better: bool = True) -> Chart:
    bars = (Bar("jobpool", ("ours",)), Bar("Peer", ("theirs",), "It is small."), Bar("Other", ("others",)))
    return Chart("x", "X", "s, median", more_is_better, "Time.", (Panel("one", "over Redis, twice", ("redis",), bars),))


def test_the_page_is_the_one_that_the_tables_make() -> None:
    text = charts.PAGE.read_text("utf-8")
    assert charts.page(text, TABLES) == text, "run scripts/bench charts"
    assert charts.UNKNOWN not in text


def test_the_pictures_are_those_that_the_tables_make() -> None:
    wanted = charts.drawings(TABLES)
    pictures = {picture.stem: picture for picture in charts.PICTURES.iterdir()}
    assert {"throughput", "cpu", "latency"} <= set(pictures) == set(wanted)
    for name, picture in pictures.items():
        assert charts.drawn_from(picture) == wanted[name], f"{name}: run scripts/bench charts"
        assert picture.stat().st_size <= LARGEST_PICTURE


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    never = float("inf")
    figures = [
        Figure("pool", 25307, "jobs/s", 21647, 26908, 5),
        Figure("one", 0.5, "", 0.5, 0.5, 1),
        Figure("never", never, "", never, never, 2),
    ]

    report.write_readme(readme, [Section("redis", "title", figures, [environment.versions(["celery"])], 0.25)], ABOUT)
    found = recorded_tables.sections(readme.read_text())["redis"]

    assert list(found.figures.values()) == figures
    assert found.about.items() >= ABOUT.items()
    assert found.about["celery"][0].isdigit()
    assert found.noise == "Other programs had 25% of the machine meanwhile: too much to compare with."


@pytest.mark.parametrize(
    ("more_is_better", "theirs", "winning"),
    [(True, 3.0, True), (True, 1.0, False), (True, 2.0, False), (False, 1.0, True), (False, float("inf"), False)],
)
def test_a_peer_that_wins_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, more_is_better: bool, theirs: float, winning: bool
) -> None:
    monkeypatch.setattr(charts, "CHARTS", (chart(more_is_better),))
    text = charts.page(f"a\n{charts.BEGIN}old{charts.END}\nb", {"one": table(ours=2.0, theirs=theirs, others=2.0)})

    line = f"* **Peer**, over Redis: {theirs:g} against 2 s. It is small."
    assert text.startswith("a\n")
    assert text.endswith("\nb")
    assert "old" not in text
    assert (line in text.splitlines()) == winning
    assert ("No peer wins here." in text) != winning


def test_a_figure_that_was_not_recorded_leaves_the_picture_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "CHARTS", (chart(),))
    assert charts.drawings({"one": table(ours=2.0, theirs=1.0)}) == charts.drawings({}) == {}
    assert list(charts.drawings({"one": table(ours=2.0, theirs=1.0, others=1.0)})) == ["x"]


def test_a_page_without_a_place_for_charts_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for charts"):
        charts.page("nothing", TABLES)


def test_every_chart_has_jobpool_first_and_a_section_that_a_benchmark_makes() -> None:
    for one in comparison.CHARTS:
        for panel in one.panels:
            assert panel.bars[0].label.startswith("jobpool")
            assert panel.section in command.GROUPS["peers"]


COMPARED = ["dispatch", "redis", "postgres", "latency", "timeouts", "memory"]


@pytest.mark.parametrize(
    ("words", "done"),
    [
        ("peers redis", [*COMPARED, "tables", "charts"]),
        ("peers --quick", COMPARED),
        ("redis --write", ["redis", "tables", "charts"]),
        ("redis", ["redis"]),
        ("charts", ["charts"]),
    ],
)
def test_the_names_of_groups(monkeypatch: pytest.MonkeyPatch, words: str, done: list[str]) -> None:
    told: list[str] = []
    monkeypatch.setattr(command, "_run", lambda name, _: told.append(name))
    monkeypatch.setattr(report, "write_readme", lambda *_: told.append("tables"))
    monkeypatch.setattr(charts, "renew", lambda: told.append("charts"))

    assert CliRunner().invoke(command.main, words.split()).exit_code == 0
    assert told == done


if environment.exists():

    def test_a_picture_says_what_it_was_drawn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(charts, "CHARTS", (chart(),))
        drawings = charts.drawings({"one": table(ours=2.0, theirs=float("inf"), others=1e3)})

        sample("peers.drawing", python=environment.program("python"), drawings=drawings, directory=str(tmp_path))

        assert charts.drawn_from(tmp_path / "x.png") == drawings["x"]
