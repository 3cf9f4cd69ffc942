"""The charts of docs/benchmarks.md and the sections around them, made from the tables of bench/README.md alone.

Each picture keeps what it was drawn from inside its file, so that one that no longer fits the tables is known without
drawing.
"""

from __future__ import annotations

import json
import math
import struct
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import recorded_tables
from bench.comparison import CHARTS, Bar, Chart, Panel
from bench.figures import Figure
from bench.peers import environment
from bench.programs import ROOT, sample
from bench.recorded_tables import Recorded
from bench.report import number

TABLES = ROOT / "bench" / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "charts"
BEGIN, END = "<!-- charts: made by scripts/bench charts -->", "<!-- end of charts -->"
SPREAD = "Whiskers: from the lowest to the highest sample. One that ends in an arrow goes on."
UNKNOWN = "The reason is not known yet."

Tables = Mapping[str, Recorded]


def renew() -> None:
    """Write the page, and draw all pictures, in the peers' environment."""
    tables = recorded_tables.sections(TABLES.read_text("utf-8"))
    PAGE.write_text(page(PAGE.read_text("utf-8"), tables), "utf-8")
    current = drawings(tables)
    PICTURES.mkdir(exist_ok=True)
    for picture in PICTURES.glob("*.png"):
        if picture.stem not in current:
            picture.unlink()
    environment.ensure()
    sample("peers.drawing", python=environment.program("python"), drawings=current, directory=str(PICTURES))


def drawings(tables: Tables) -> dict[str, dict[str, Any]]:
    """Return everything that is to be seen in each picture, by its name."""
    return {
        chart.name: {
            "title": f"{chart.title} ({chart.unit}; {'more' if chart.more_is_better else 'less'} is better)",
            "foot": [
                SPREAD,
                *dict.fromkeys(_when(tables[panel.section]) for panel in panels),
                _versions(panels, tables),
            ],
            "panels": [
                {"title": panel.title, "bars": [_drawn(bar, tables[panel.section].figures) for bar in panel.bars]}
                for panel in panels
            ],
        }
        for chart, panels in _measured(tables)
    }


def drawn_from(picture: Path) -> Any:
    """Return what a picture was drawn from; None if there is none, or if it does not say."""
    data = picture.read_bytes() if picture.exists() else b""
    at = 8
    while at < len(data):  # chunks: length, kind, content, checksum
        length, kind = struct.unpack_from(">I4s", data, at)
        key, _, text = data[at + 8 : at + 8 + length].partition(b"\0")
        if (kind, key) == (b"tEXt", b"Description"):
            return json.loads(text)
        at += 12 + length
    return None


def page(text: str, tables: Tables) -> str:
    """Return the page with its charts' sections made anew. Raises `ValueError` without the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no place for charts: put the lines {BEGIN!r} and {END!r} into it")
    measured = dict(_measured(tables))
    sections = [_section(chart, panels, tables) for chart, panels in measured.items()]
    missing = ", ".join(chart.title for chart in CHARTS if chart not in measured)
    note = [_wrapped(f"Not measured yet; `scripts/bench peers` does it: {missing}.")] if missing else []
    machines = _machines([panel for panels in measured.values() for panel in panels], tables)
    return "\n\n".join([before + begin, *sections, *note, machines, end + after])


def _measured(tables: Tables) -> Iterator[tuple[Chart, list[Panel]]]:
    """Yield the charts with their panels of which every figure is recorded."""
    for chart in CHARTS:
        panels = [panel for panel in chart.panels if _is_recorded(panel, tables)]
        if panels:
            yield chart, panels


def _is_recorded(panel: Panel, tables: Tables) -> bool:
    rows = tables[panel.section].figures if panel.section in tables else {}
    return all(figure in rows for bar in panel.bars for figure in bar.figures)


def _drawn(bar: Bar, figures: Mapping[str, Figure]) -> dict[str, Any]:
    parts = [figures[name] for name in bar.figures]
    return {
        "label": bar.label,
        "parts": [{"value": part.value, "low": part.low, "high": part.high} for part in parts],
        "value": " + ".join(number(part.value) for part in parts),
        "spread": f"{number(parts[0].low)} … {number(parts[0].high)}"
        if parts[0].count > 1 and math.isfinite(parts[0].low)
        else "",
    }


def _when(table: Recorded) -> str:
    return f"{table.about['date']}, {_machine(table)}"


def _machine(table: Recorded) -> str:
    return f"{table.about['cores']} cores, {table.about['cpu']}, Python {table.about['python']}"


def _versions(panels: list[Panel], tables: Tables) -> str:
    found = [(name, tables[panel.section].about.get(name)) for panel in panels for name in panel.versions]
    return ", ".join(dict.fromkeys(f"{name} {version}" for name, version in found if version))


def _section(chart: Chart, panels: list[Panel], tables: Tables) -> str:
    better = "More" if chart.more_is_better else "Less"
    wins = [_wrapped(f"* **{bar.label}**, {text}") for panel in panels for bar, text in winners(chart, panel, tables)]
    return "\n\n".join(
        [
            f"## {chart.title}",
            _wrapped(chart.what),
            f"![{chart.title}: {chart.unit}](charts/{chart.name}.png)",
            f"{better} is better. " + ("A peer wins here:" if wins else "No peer wins here."),
            *(["\n".join(wins)] if wins else []),
            _wrapped(" ".join(_samples(panel, tables) for panel in panels)),
        ]
    )


def winners(chart: Chart, panel: Panel, tables: Tables) -> Iterator[tuple[Bar, str]]:
    """Yield the peers that beat jobpool, and the text about it."""
    own, *peers = panel.bars
    ours, _ = _total(own, tables[panel.section])
    for peer in peers:
        theirs, shown = _total(peer, tables[panel.section])
        if theirs != ours and (theirs > ours) == chart.more_is_better:
            against = f"{shown} against {number(ours)} {chart.unit.partition(',')[0]}"
            yield peer, f"{_short(panel)}: {against}. {peer.why or UNKNOWN}"


def _total(bar: Bar, table: Recorded) -> tuple[float, str]:
    total = sum(table.figures[name].value for name in bar.figures)
    return total, number(total)


def _samples(panel: Panel, tables: Tables) -> str:
    table = tables[panel.section]
    counts = sorted({table.figures[bar.figures[0]].count for bar in panel.bars})
    what = _short(panel)
    return f"{what[0].upper()}{what[1:]}: {' or '.join(map(str, counts))} samples each, {table.about['date']}."


def _machines(panels: list[Panel], tables: Tables) -> str:
    """Return the section with what all charts have in common, each machine and version once."""
    measured = [tables[panel.section] for panel in panels]
    facts = dict.fromkeys([*(f"{_machine(table)}." for table in measured), *(table.noise for table in measured)])
    versions = [f"| {' | '.join(version.rsplit(' ', 1))} |" for version in _versions(panels, tables).split(", ")]
    return "\n".join(["## Machine and versions", "", *facts, "", "| program | version |", "|---|---|", *versions])


def _short(panel: Panel) -> str:
    return panel.title.partition(",")[0]


def _wrapped(text: str) -> str:
    """Break a paragraph or an item of a list as the docs are broken."""
    indent = "  " if text.startswith("* ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
