"""Text from elsewhere (payloads, errors, names, answers of brokers), made safe to show on a terminal.

A terminal obeys control characters: it moves its cursor, sets the clipboard, retitles its window. Bidirectional
controls and invisible characters make a text read as another one. They are replaced by JSON's escapes, so that the same
function serves JSON documents. Of an error text, `headline` is the one line that says what happened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

Record = TypeVar("Record")

# C0 without tab and line feed, DEL, C1; marks and controls of direction, line and paragraph separators. Invisible ones
# (but for joiners that scripts and emoji need), halves of surrogate pairs, tags.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_BREAK = re.compile("\r\n|[\t-\r]")

MAX_HEADLINE_CHARS = 500  # characters of a headline that are kept
_OF_GROUP = ("+ Exception Group Traceback", "| ")
_SAYS = re.compile(r"( *)\| (?!Traceback |Exception Group Traceback )(\S.*)")
"""A line in the picture of a group that is neither a frame nor code of one."""

_CLASS = re.compile(r"[\w.<>]+(?::|$)")  # an error's: the first word of a line that tells of it
_COUNT = re.compile(r" \([0-9]+ sub-exceptions?\)$")
_BEGINS = "Traceback (most recent call last)", "  + Exception Group Traceback (most recent call last)"
_CHAINED = "following exception:", "another exception occurred:"
"""Ends of the lines between the errors of a chain. One that was never raised stands there without a traceback, such as
the traceback of another process that `multiprocessing` gives as a cause."""

_CUT = "[… "  # the start of the mark in place of text that was cut out


def printable(text: str) -> str:
    """Return `text` with JSON's escapes in place of what steers a terminal; line feeds and tabs stay."""
    return _STEERING.sub(_escaped, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return `text` as `printable` does, on one line: a space in place of each line feed, tab and the like."""
    return _STEERING.sub(_escaped, _BREAK.sub(" ", text))


def hides(*names: str) -> Callable[[type[Record]], type[Record]]:
    """Leave these fields of a record out where it is shown, by rich too."""

    def shown(record: Any) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(record, name)) for name in record.__struct_fields__ if name not in names)

    def text(record: Any) -> str:
        return f"{type(record).__name__}({', '.join(f'{name}={value!r}' for name, value in shown(record))})"

    def hide(kind: type[Record]) -> type[Record]:
        kind.__repr__ = text  # type: ignore[method-assign]
        kind.__rich_repr__ = shown  # type: ignore[attr-defined]
        return kind

    return hide


def json_text(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON that is safe to show; values unknown to JSON are written as their `str`."""
    return printable(json.dumps(value, ensure_ascii=False, default=str, indent=indent))


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def escaped(error: UnicodeError) -> tuple[str, int]:
    """Handle an error of `codecs`: give JSON's escapes for what an output cannot take, and the place after it."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def headline(text: str | None) -> str | None:
    """Return the line that says what happened: the first below the frames of a traceback, or of any other text.

    Of a chain of errors it is the last one's, whose message may have several lines, with notes below it.
    Of a group of exceptions: the message of the group, and that of the first one in it.
    """
    lines = (text or "").strip().splitlines()
    if not lines:
        return None
    if lines[0].startswith(_OF_GROUP):
        return (_of_group(lines) or lines[0])[:MAX_HEADLINE_CHARS]
    is_traceback = lines[0].startswith("Traceback") or (
        _CLASS.match(lines[0]) is not None and any(line.endswith(_CHAINED) for line in lines)
    )
    return (_of_traceback(lines) if is_traceback else lines[0])[:MAX_HEADLINE_CHARS]


def _of_traceback(lines: Sequence[str]) -> str:
    begin = max((number for number, line in enumerate(lines) if line.startswith(_BEGINS)), default=0)
    if lines[begin].startswith(_BEGINS[1]):
        return _of_group(lines[begin:]) or lines[-1]
    for before, line in pairwise(lines[begin:]):
        is_cut = line.startswith(_CUT) or before.startswith(_CUT)  # a line after a mark may have lost its beginning
        if line[:1].strip() and not is_cut:
            return line
    return lines[-1]


def _of_group(lines: Sequence[str]) -> str:
    found = [(len(said[1]), said[2]) for said in map(_SAYS.match, lines) if said]
    if not found:
        return ""
    depth, group = found[0]
    inner = next((text for deeper, text in found if deeper > depth), "")
    return ": ".join(filter(None, (_COUNT.sub("", group), inner)))
