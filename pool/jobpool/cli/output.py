"""How answers look: tables on a terminal, plain aligned text in a pipe, JSON when asked for. Answers go to stdout.

Texts of messages, errors and names are made safe for a terminal here; colours are added after that.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

import click
from msgspec import Struct

from jobpool.errors import JobpoolError
from jobpool.message.printable import json_text, one_line, printable
from jobpool.telemetry.logs import is_colourful

Found = TypeVar("Found")

MIN_COLUMN_CHARS = 8  # characters that a column keeps, however narrow the terminal is
BLOCK_ROWS = 500  # of a table that are aligned and printed together, before the next are read


class Column(Struct, frozen=True):
    """One column. `right`: numbers. `bold`: on a terminal. `flexible`: cut when there is no room."""

    title: str
    right: bool = False
    bold: bool = False
    flexible: bool = False


def columns(titles: str) -> tuple[Column, ...]:
    """Return the columns of `"ID, NAME!, QUEUE~, AGE>"`: `!` = bold, `~` = flexible, `>` = numbers."""
    marked = [title.strip() for title in titles.split(",")]
    return tuple(Column(text.rstrip("!~>"), ">" in text, "!" in text, "~" in text) for text in marked)


def say(text: str) -> None:
    """Print a part of an answer, which may have several lines."""
    click.echo(printable(text))


def note(text: str) -> None:
    """Print to stderr what is not the answer."""
    click.echo(printable(text), err=True)


def answer_json(value: Any) -> None:
    """Print one JSON document: indented on a terminal, one line in a pipe."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def asks_json() -> bool:
    """Return whether the verb that runs was given `--json`."""
    return bool(click.get_current_context().params.get("json_"))


def answered(value: Any) -> bool:
    """Answer with one JSON document if that was asked for; return whether it was."""
    if asked := asks_json():
        answer_json(value)
    return asked


def answer(
    found: Iterable[Found],
    values: Callable[[Found], Any],
    columns: Sequence[Column],
    row: Callable[[Found], Sequence[str]],
    nothing: str = "",
    limit: int = 0,
) -> bool:
    """Answer with what is found, as it is read: JSON, a table, or a note that there is nothing; return if there is.

    Of more than `limit` (0 = no limit) the first, and a note that there are more.
    """
    rest = iter(found)
    first = [*islice(rest, 1)]
    shown = chain(first, islice(rest, limit - 1 if limit else None))
    if asks_json():
        _answer_list(map(values, shown))
    elif first:
        table(columns, map(row, shown))
    elif nothing:
        note(nothing)
    if limit and next(rest, None) is not None:
        note(f"there are more than {limit}; --limit 0 lists all")
    return bool(first)


def _answer_list(values: Iterator[Any]) -> None:
    """Print a list as `answer_json` does, each value as it becomes known; after an error it has no closing bracket."""
    indent, begin, between, end = (2, "[\n  ", ",\n  ", "\n]") if sys.stdout.isatty() else (None, "[", ", ", "]")
    lead = begin
    for value in values:
        click.echo(lead + json_text(value, indent).replace("\n", "\n  "), nl=False)
        lead = between
    click.echo("[]" if lead is begin else end)


def answer_ids(batches: Iterable[list[str]], word: str, done: str, *, counts: bool = False) -> None:
    """Print ids as they come, or as one JSON list; if it `counts`, only how many there were.

    An error says how many there are already: `word`, and what is `done`.
    """
    ids: list[str] = []
    is_told_at_once = not (counts or asks_json())
    try:
        for batch in batches:
            ids += batch
            if is_told_at_once:
                say("\n".join(batch))
        if not answered(ids) and counts:
            say(f"{plural(len(ids), word)} {done}")
    except JobpoolError as error:
        if not ids:
            raise
        answered(ids)
        told = "" if counts else "; their ids are printed above"
        raise type(error)(f"{error} ({plural(len(ids), word)} before it are {done}{told})") from error
    except OSError:  # stdout is full, or its reader has gone
        if ids:
            note(f"{plural(len(ids), word)} {done}, though not every id could be printed")
        raise


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text as they come, each cell on one line; on a terminal, cut to its width."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    is_coloured, rest, head = is_colourful(sys.stdout), iter(rows), list[str]()
    while (block := [*islice(rest, BLOCK_ROWS)]) or not head:
        titles, *lines = aligned(columns, block, room, gap=2, least=[*map(text_width, head)])
        if is_coloured:
            lines = [
                [click.style(one, bold=True) if column.bold else one for column, one in zip(columns, line, strict=True)]
                for line in lines
            ]
        if not head:
            lines.insert(0, [click.style(one, bold=True, underline=True) for one in titles] if is_coloured else titles)
        for line in lines:
            click.echo("  ".join(line).rstrip())
        head = titles


def aligned(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None, *, gap: int, least: Sequence[int] = ()
) -> list[list[str]]:
    """Return titles and rows, each cell on one line and as wide as its column; cut to `room` with `gap` between.

    `least`: the widths of earlier rows, so that later ones stand below them.
    """
    cells = [[column.title for column in columns], *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    widths = [*map(max, widths, least or widths)]
    if room is not None:
        widths = fit(columns, widths, room - gap * (len(columns) - 1))
    return [
        [_padded(cell, width, column.right) for cell, width, column in zip(line, widths, columns, strict=True)]
        for line in cells
    ]


def plural(count: int, word: str) -> str:
    """Return `1 job`, `2,000 jobs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def fit(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Return `widths` with the flexible columns cut, the widest first, until all fit into `room`; ids are never cut."""
    fitted = list(widths)
    flexible = [index for index, column in enumerate(columns) if column.flexible]
    while sum(fitted) > room and flexible:
        widest = max(flexible, key=lambda index: fitted[index])
        if fitted[widest] <= MIN_COLUMN_CHARS:
            break
        fitted[widest] -= 1
    return fitted


def cut(text: str, width: int) -> str:
    """Return as much of a plain line as fits, with `…` for the rest."""
    if text_width(text) > width:
        text = f"{text[: max(0, width - 1)]}…"
        while text_width(text) > width and len(text) > 1:
            text = f"{text[:-2]}…"
    return text


def _padded(text: str, width: int, right: bool) -> str:
    text = cut(text, width)
    room = " " * (width - text_width(text))
    return room + text if right else text + room


def text_width(text: str) -> int:
    """Return the places that a text takes on a terminal: East Asian characters take two, marks on others none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
