"""How answers look: tables on a terminal, plain aligned text in a pipe, JSON when asked for. Answers go to stdout.

Texts of messages, errors and names are made safe for a terminal here; colours are added after that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from jobpool.message.printable import json_text, one_line, printable

NARROWEST = 8
"""Characters that a column keeps, however narrow the terminal is."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `right`: numbers. `style`: rich's, on a terminal. `flexible`: cut when there is no room."""

    title: str
    right: bool = False
    style: str = ""
    flexible: bool = False


def say(text: str) -> None:
    """Print a part of an answer, which may have several lines."""
    click.echo(printable(text))


def note(text: str) -> None:
    """Print to stderr what is not the answer."""
    click.echo(printable(text), err=True)


def answer_json(value: Any) -> None:
    """Print one JSON document: indented on a terminal, one line in a pipe."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text; each cell on one line."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells)
    else:
        _plain_table(columns, cells)


def plural(count: int, word: str) -> str:
    """Return `1 job`, `2,000 jobs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def fit(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Return `widths` with the flexible columns cut, the widest first, until all fit into `room`; ids are never cut."""
    fitted = list(widths)
    flexible = [index for index, column in enumerate(columns) if column.flexible]
    while sum(fitted) > room and flexible:
        widest = max(flexible, key=lambda index: fitted[index])
        if fitted[widest] <= NARROWEST:
            break
        fitted[widest] -= 1
    return fitted


def _widths(columns: Sequence[Column], rows: list[list[str]]) -> list[int]:
    return [max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)]


def _plain_table(columns: Sequence[Column], rows: list[list[str]]) -> None:
    widths = _widths(columns, rows)
    for row in ([column.title for column in columns], *rows):
        padded = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def _rich_table(columns: Sequence[Column], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    widths = fit(columns, _widths(columns, rows), console.width - 2 * len(columns))
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(
            column.title, justify="right" if column.right else "left", style=column.style, no_wrap=True, width=width
        )
    for row in rows:
        grid.add_row(*map(Text, row))
    console.print(grid)
