"""The pages: self-contained HTML, one file a report and an index, no script, nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from stdlib_reports.measure import FileMeasure, FunctionMeasure, Totals

SHOWN = 12
"""Rows in a chart or a table of functions."""

_STYLE = Path(__file__).with_name("style.css").read_text("utf-8")


def report(totals: Totals, files: Sequence[FileMeasure]) -> str:
    """The page of one subject."""
    functions = [(file.name, function) for file in files for function in file.functions]
    return _page(
        f"{totals.subject}: a report",
        f"<p><a href='index.html'>All reports</a></p><h1>{escape(totals.subject)}</h1>"
        f"{_tiles(totals)}{_functions(functions)}{_files(files)}",
    )


def index(reports: Iterable[Totals]) -> str:
    """The page that lists every report, the largest first."""
    rows = sorted(reports, key=lambda totals: (-totals.lines, totals.subject))
    lines, functions = sum(row.lines for row in rows), sum(row.functions for row in rows)
    chart = bars([(row.subject, row.lines) for row in rows[:SHOWN]], "lines")
    body = "".join(_index_row(row) for row in rows)
    return _page(
        "The standard library, measured",
        f"<h1>The standard library, measured</h1><p>{len(rows)} reports, {lines:,} lines, {functions:,} functions.</p>"
        f"<h2>Largest</h2>{chart}<h2>All</h2><table><tr><th>Report</th><th>Files</th><th>Lines</th><th>Functions</th>"
        f"<th>Classes</th><th>Most branches</th><th>Documented</th></tr>{body}</table>",
    )


def bars(values: Sequence[tuple[str, int]], unit: str) -> str:
    """A bar chart as SVG: one row a value, the number beside its bar."""
    row, left, width = 22, 220, 560
    most = max((value for _, value in values), default=0) or 1
    drawn = "".join(
        f"<text x='{left - 8}' y='{row * place + 15}' text-anchor='end'>{escape(_short(name))}</text>"
        f"<rect x='{left}' y='{row * place + 3}' width='{max(1, value * width // most)}' height='16' rx='2'/>"
        f"<text x='{left + max(1, value * width // most) + 6}' y='{row * place + 15}'>{value:,}</text>"
        for place, (name, value) in enumerate(values)
    )
    return (
        f"<svg viewBox='0 0 {left + width + 80} {row * max(1, len(values))}' role='img' "
        f"aria-label='Bar chart of {escape(unit, quote=True)}'>{drawn}</svg>"
    )


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _tiles(totals: Totals) -> str:
    tiles = {
        "Files": f"{totals.files:,}",
        "Lines": f"{totals.lines:,}",
        "Comments": f"{totals.comments:,}",
        "Functions": f"{totals.functions:,}",
        "Classes": f"{totals.classes:,}",
        "Imports": f"{totals.imports:,}",
        "Longest function": f"{totals.longest:,} lines",
        "Most branches": f"{totals.branchiest:,}",
        "Documented": f"{totals.documented_share:.0%}",
    }
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in tiles.items())}</dl>"


def _functions(functions: Sequence[tuple[str, FunctionMeasure]]) -> str:
    if not functions:
        return "<p>No functions.</p>"
    worst = sorted(functions, key=lambda pair: (-pair[1].branches, pair[0], pair[1].line))[:SHOWN]
    chart = bars([(function.name, function.branches) for _, function in worst], "branches a function")
    rows = "".join(
        f"<tr><td>{escape(function.name)} <span class='soft'>{escape(file)}:{function.line}</span></td>"
        f"<td>{function.lines:,}</td><td>{function.branches:,}</td></tr>"
        for file, function in worst
    )
    return (
        f"<h2>Most branches</h2>{chart}<table><tr><th>Function</th><th>Lines</th><th>Branches</th></tr>{rows}</table>"
    )


def _files(files: Sequence[FileMeasure]) -> str:
    rows = "".join(
        f"<tr><td>{escape(file.name)}</td><td>{file.lines:,}</td><td>{len(file.functions):,}</td><td>{file.classes:,}</td>"
        f"<td>{len(file.imports):,}</td><td>{file.documented:,} of {file.documentable:,}</td></tr>"
        for file in files
    )
    return (
        "<h2>Files</h2><table><tr><th>File</th><th>Lines</th><th>Functions</th><th>Classes</th><th>Imports</th>"
        f"<th>Documented</th></tr>{rows}</table>"
    )


def _index_row(row: Totals) -> str:
    name = escape(row.subject)
    return (
        f"<tr><td><a href='{name}.html'>{name}</a></td><td>{row.files:,}</td><td>{row.lines:,}</td>"
        f"<td>{row.functions:,}</td><td>{row.classes:,}</td><td>{row.branchiest:,}</td><td>{row.documented_share:.0%}</td></tr>"
    )


def _short(name: str, most: int = 30) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
