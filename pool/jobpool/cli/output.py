"""How answers look: tables on a terminal, plain aligned text in a pipe, JSON when asked for. Answers go to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `right`: numbers. `style`: rich's, on a terminal. `flexible`: cut when there is no room."""

    title: str
    right: bool = False
    style: str = ""
    flexible: bool = False


def say(text: str) -> None:
    """One line of an answer."""
    click.echo(text)


def note(text: str) -> None:
    """One line that is not the answer: to stderr."""
    click.echo(text, err=True)


def answer_json(value: Any) -> None:
    """One JSON document: indented on a terminal, one line in a pipe."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str, indent=2 if sys.stdout.isatty() else None))


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Rows of text; each cell on one line."""
    cells = [[_one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells, title)
    else:
        _plain_table(columns, cells)


def plural(count: int, word: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _plain_table(columns: Sequence[Column], rows: list[list[str]]) -> None:
    widths = [max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)]
    for row in ([column.title for column in columns], *rows):
        padded = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def _rich_table(columns: Sequence[Column], rows: list[list[str]], title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    grid = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        justify = "right" if column.right else "left"
        grid.add_column(
            column.title,
            justify=justify,  # type: ignore[arg-type]
            style=column.style,
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if column.flexible else None,
        )
    for row in rows:
        grid.add_row(*(escape(cell) for cell in row))
    Console().print(grid)


def _one_line(text: str) -> str:
    """Control characters of other people's text must not steer the terminal, nor break a row."""
    return "".join(char if char.isprintable() else " " for char in text)
