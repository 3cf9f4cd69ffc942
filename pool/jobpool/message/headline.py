"""The one line of an error text that says what happened."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 500
"""Characters of it that are kept."""

_OF_GROUP = ("+ Exception Group Traceback", "| ")
_SAYS = re.compile(r"( *)\| (?!Traceback |Exception Group Traceback )(\S.*)")
"""In the picture of a group: what is neither a frame nor code of one."""

_COUNT = re.compile(r" \([0-9]+ sub-exceptions?\)$")


def headline(text: str | None) -> str | None:
    """Return the line that says what happened: the last of a traceback, the first of anything else.

    Of a group of exceptions: what it says, and what the first one in it does.
    """
    lines = (text or "").strip().splitlines()
    if not lines:
        return None
    if lines[0].startswith(_OF_GROUP):
        return (_of_group(lines) or lines[0])[:LONGEST]
    return lines[-1 if lines[0].startswith("Traceback") else 0][:LONGEST]


def _of_group(lines: Sequence[str]) -> str:
    found = [(len(said[1]), said[2]) for said in map(_SAYS.match, lines) if said]
    if not found:
        return ""
    depth, group = found[0]
    inner = next((text for deeper, text in found if deeper > depth), "")
    return ": ".join(filter(None, (_COUNT.sub("", group), inner)))
