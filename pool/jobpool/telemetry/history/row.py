"""One attempt as history keeps it: a JSON object, masked, of bounded size. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from jobpool.message.masking import Masker
from jobpool.message.names import is_name

FIELDS = (
    *("name", "job", "id", "attempt", "queue", "source", "payload", "output", "error", "status"),
    *("start", "end", "duration", "cause"),
)
"""In this order; absent = None."""

MASKED = frozenset({"name", "job", "payload", "output", "error", "cause"})

MAX_ROW_BYTES = 200 * 1024  # bytes of one row: a key store takes 256 KiB, and a line is easier to read
MAX_FIELD_CHARS = 64 * 1024 + 256
"""Characters of one field, at first; halved until the row is not too large. An output at its cap of 64 KiB, with the
mark of that, is not cut again."""

_EARLIER_MARK = re.compile(r"\[… (\d+ bytes dropped) …\]")

UNNAMED = "-"  # the name of what has none that could be one: messages that were rejected unread


class AttemptRow(Struct, frozen=True):
    """The facts of one attempt whose settlement was accepted."""

    name: str
    job: str
    id: str
    attempt: int
    queue: str
    payload: Any
    status: str
    output: str = ""
    error: str | None = None
    start: float | None = None  # Unix time; None = its handler did not run
    duration: float | None = None  # seconds
    cause: str | None = None  # as in `Message.cause`


def row_of(attempt: AttemptRow, masker: Masker) -> dict[str, Any]:
    """Return the row, masked."""
    ended = None if attempt.start is None else attempt.start + (attempt.duration or 0.0)
    # Source "queue": fetched from a queue by a pool.
    values = asdict(attempt) | {"source": "queue", "end": ended, "cause": _cause(attempt.cause)}
    return {field: masker.value(values[field]) if field in MASKED else values[field] for field in FIELDS}


def _cause(cause: str | None) -> Any:
    """Return a record as a dict (death.py), another text as it is."""
    try:
        found = json.loads(cause or "")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else cause


def encode(row: Mapping[str, Any], largest: int = MAX_ROW_BYTES) -> bytes:
    """Return one line of JSON, without its end, of at most `largest` bytes: long fields are cut, and say so."""
    room = MAX_FIELD_CHARS
    while True:
        cut = {field: _without_middle(value, room) for field, value in row.items()}
        line = json.dumps(cut, ensure_ascii=False).encode("utf-8", "replace")
        if len(line) <= largest or not room:
            return line
        room //= 2


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line; None: it is none, cut short by a crash, say."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return None
    return {field: row.get(field) for field in FIELDS}


def log_name(name: str) -> str:
    """Return a name under which rows can be kept."""
    return name if is_name(name) else UNNAMED


def shortened(value: Any, most: int) -> Any:
    """Return the first `most` characters of a text, or of a value's JSON, and how many are left out."""
    text = _text_of(value)
    return value if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} characters more)"


def _text_of(value: Any) -> str:
    """Return a text, or a value's JSON; "" for a number."""
    if value is None or isinstance(value, bool | int | float):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _without_middle(value: Any, most: int) -> Any:
    """Return a field with at most `most` characters and a mark: how an attempt ended is at the end of what it printed.

    The mark of an earlier cut, when it is cut out with the middle, goes into this one.
    """
    text = _text_of(value)
    if len(text) <= most:
        return value
    half = most // 2
    middle = text[half : len(text) - half]
    before = _EARLIER_MARK.search(middle)
    also = f", {before[1]} before that" if before else ""
    return f"{text[:half]}\n[… {len(middle):,} characters cut by the history{also} …]\n{text[len(text) - half :]}"
