"""Text from elsewhere (payloads, errors, names, answers of brokers), made safe to show on a terminal.

A terminal obeys control characters: it moves its cursor, sets the clipboard, retitles its window. Bidirectional
controls and invisible characters make a text read as another one. They are replaced by JSON's escapes, so that the same
function serves JSON documents.
"""

from __future__ import annotations

import json
import re
from typing import Any

# C0 without tab and line feed, DEL, C1; marks and controls of direction, line and paragraph separators, what is
# invisible (joiners that scripts and emoji need excepted), halves of surrogate pairs, tags.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_BREAK = re.compile("\r\n|[\t-\r]")


def printable(text: str) -> str:
    """Return `text` with JSON's escapes in place of what steers a terminal; line feeds and tabs stay."""
    return _STEERING.sub(_escaped, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return `text` as `printable` does, on one line: a space in place of each line feed, tab and the like."""
    return _STEERING.sub(_escaped, _BREAK.sub(" ", text))


def json_text(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON that is safe to show; what JSON does not know is written as its `str`."""
    return printable(json.dumps(value, ensure_ascii=False, default=str, indent=indent))


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
