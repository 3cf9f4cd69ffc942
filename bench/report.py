"""Sections as tables for a terminal, as JSON, and as the tables of bench/README.md."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import servers
from bench.figures import Figure, Section

HEADINGS = ("figure", "measured", "lowest to highest", "n", "target", "met")
BEGIN = "<!-- tables: made by scripts/bench --write -->"
END = "<!-- end of tables -->"

NEVER = "never"
"""Written for an infinite time."""

NOISY = 0.1
"""Share of the machine in other hands above which figures say little."""


def machine() -> dict[str, Any]:
    """Return the facts of the machine."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **servers.versions(),
        "load": round(os.getloadavg()[0], 2),
    }


def as_json(sections: Sequence[Section], about: dict[str, Any]) -> str:
    """Return everything, for programs."""
    return json.dumps({"machine": about, "sections": [_section(section) for section in sections]}, indent=2)


def _section(section: Section) -> dict[str, Any]:
    figures = [_finite(asdict(figure)) | {"met": figure.met} for figure in section.figures]
    return {
        "name": section.name,
        "title": section.title,
        "others": section.others,
        "figures": figures,
        "notes": section.notes,
    }


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Put None, for which JSON has a word, in place of infinite."""
    return {name: None if value == math.inf else value for name, value in fields.items()}


def show(section: Section, console: Console) -> None:
    """Print one section."""
    table = Table(title=section.title, title_justify="left", title_style="bold", header_style="dim")
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if place in (0, 5) else "right")
    for figure in section.figures:
        table.add_row(*_row(figure), style="red" if figure.met is False else None)
    console.print(table)
    for note in notes(section):
        console.print(note, style="dim", highlight=False)
    console.print()


def notes(section: Section) -> list[str]:
    """Return its sentences, and one about the noise."""
    share = f"Other programs had {section.others:.0%} of the machine meanwhile"
    return [*section.notes, f"{share}: too much to compare with." if section.others > NOISY else f"{share}."]


def markdown(section: Section, about: dict[str, Any]) -> str:
    """Return one section for the README, with the machine and the day that it was measured on."""
    lines = [f"### {section.name}: {section.title}", "", _line(HEADINGS), "|---|---:|---:|---:|---:|---|"]
    lines += [_line(_row(figure)) for figure in section.figures]
    measured = ", ".join(f"{key} {value}" for key, value in about.items())
    lines += ["", *(f"{note}\n" for note in notes(section)), f"Measured: {measured}"]
    return "\n".join(lines)


def write_readme(path: Path, sections: Sequence[Section], about: dict[str, Any]) -> None:
    """Put new tables in place of the old ones; those of other sections stay. Raises `ValueError` without the marks."""
    before, found, rest = path.read_text().partition(BEGIN)
    old, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{path} has no place for tables: put the lines {BEGIN!r} and {END!r} into it")
    current = tables(old) | {section.name: markdown(section, about) for section in sections}
    path.write_text("\n\n".join([f"{before}{BEGIN}", *current.values(), f"{END}{after}"]))


def tables(text: str) -> dict[str, str]:
    """Return the sections in a README's tables, by name."""
    blocks = re.split("^(?=### )", text, flags=re.MULTILINE)[1:]
    return {block.removeprefix("### ").partition(":")[0]: block.rstrip() for block in blocks}


def number(value: float) -> str:
    """Format with three significant digits, or all of those before the point."""
    if math.isinf(value):
        return NEVER
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _row(figure: Figure) -> tuple[str, ...]:
    unit = f" {figure.unit}" if figure.unit else ""
    spread = f"{number(figure.low)} … {number(figure.high)}" if figure.count > 1 and math.isfinite(figure.low) else ""
    target = f"{figure.target.sign} {figure.target.limit:g}{unit}" if figure.target else ""
    met = {None: "", True: "yes", False: "NO"}[figure.met]
    value = number(figure.value)
    return figure.name, value if value == NEVER else value + unit, spread, str(figure.count), target, met


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
