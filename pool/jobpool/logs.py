"""Structured logs: standard logging, written as aligned text for people or as JSON lines for machines.

A record's message names the event; what it is about goes into `extra`, as single attributes or as one dict under
`fields` (needed for words that logging keeps for itself, such as `name`):

    log.warning("child died", extra={"slot": 3, "cause": "SIGSEGV"})
    log.critical("job is dead", extra={"fields": {"id": job, "name": name}, "limit": "dead"})

`limit` names a kind of line that may come in floods: of each kind at most `RateLimit.burst` lines are written every
`RateLimit.window` seconds, and the next one written says how many were left out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from jobpool.printable import json_text, one_line, printable

# What every record carries; anything else came through `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fields", "limit"}

COLOURS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
EVENT_WIDTH = 28


def configure(level: str = "info", style: str = "text", stream: TextIO | None = None) -> LineHandler:
    """Send the logger `jobpool` to `stream` (None = stderr), in place of what an earlier call set up.

    The warnings of libraries (a broker's client, say) go there too, in the same form.

    Args:
        level: `debug`, `info`, `warning`, `error` or `critical`.
        style: `text` or `json`.
    """
    stream = stream or sys.stderr
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter(colour=is_colourful(stream)))
    handler.addFilter(RateLimit())
    logger = logging.getLogger("jobpool")
    for each in (logger, logging.getLogger()):
        for old in [found for found in each.handlers if isinstance(found, LineHandler)]:
            each.removeHandler(old)
        each.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


def is_colourful(stream: TextIO) -> bool:
    """Whether colours belong on `stream`: a terminal that is not dumb, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the record carries besides its message, in the order in which it was given."""
    fields = {key: value for key, value in vars(record).items() if key not in STANDARD}
    fields.update(getattr(record, "fields", None) or {})
    return fields


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes records above a status line, such as a progress bar, that stays the last line of the terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._status = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging, under the handler's lock."""
        if self._status:
            self.stream.write("\r\x1b[K")
        super().emit(record)
        if self._status:
            self.stream.write(self._status)
            self.flush()

    def status(self, text: str) -> None:
        """Show `text`, one line, in place of what was shown; "" leaves the last one standing and ends it."""
        with self.lock or contextlib.nullcontext():
            self.stream.write(f"\r\x1b[K{text}" if text else "\n" if self._status else "")
            self._status = text
            self.flush()


class TextFormatter(logging.Formatter):
    """`14:03:07.512 WARNING  child died                   slot=3 cause=SIGSEGV`, local time."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        fields = fields_of(record)
        event = one_line(record.getMessage())
        head = f"{moment:%H:%M:%S}.{int(record.msecs):03d} {self._level(record.levelname)} "
        line = head + (f"{event:<{EVENT_WIDTH}} " if fields else event)
        return (
            line + " ".join(f"{one_line(key)}={_plain(value)}" for key, value in fields.items()) + self._trace(record)
        )

    def _level(self, name: str) -> str:
        return f"\x1b[{COLOURS.get(name, '0')}m{name:<8}\x1b[0m" if self._colour else f"{name:<8}"

    def _trace(self, record: logging.LogRecord) -> str:
        return "\n" + printable(self.formatException(record.exc_info)) if record.exc_info else ""


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (RFC 3339, UTC, microseconds), `level`, `logger`, `event`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry.update((key, value) for key, value in fields_of(record).items() if key not in entry)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json_text(entry)


class RateLimit(logging.Filter):
    """Thins out floods of records that carry `limit`; all others pass. See the top of this file."""

    def __init__(self, burst: int = 5, window: float = 10.0, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.burst = burst
        self.window = window
        self._now = now
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; called by logging under the handler's lock or before it, so kept short."""
        limit = getattr(record, "limit", None)
        if limit is None:
            return True
        kind = self._kinds.setdefault(str(limit), _Kind(self._now()))
        left_out = kind.admit(self._now(), self.burst, self.window)
        if left_out:
            record.left_out = left_out
        return left_out is not None


class _Kind:
    """How many lines of one kind were written and left out in the current window."""

    __slots__ = ("left_out", "since", "written")

    def __init__(self, now: float) -> None:
        self.since = now
        self.written = 0
        self.left_out = 0

    def admit(self, now: float, burst: int, window: float) -> int | None:
        """None: leave it out. Else write it; the number says how many were left out before."""
        if now - self.since >= window:
            self.since, self.written = now, 0
        if self.written >= burst:
            self.left_out += 1
            return None
        self.written += 1
        before, self.left_out = self.left_out, 0
        return before


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    # One record is one line, whatever an error text holds; JSON's escapes are known to everybody.
    return json_text(text) if not text or set(text) & set(' \t\r\n"=') else printable(text)
