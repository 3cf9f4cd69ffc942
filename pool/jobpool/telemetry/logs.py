"""Structured logs: standard logging, written as aligned text for people or as JSON lines for machines.

A record's message names the event. Its details go into `extra`, as single attributes or as one dict under `fields`
(needed for words that logging keeps for itself, such as `name`):

    log.warning("child died", extra={"slot": 3, "cause": "SIGSEGV"})
    log.critical("job is dead", extra={"fields": {"id": job, "name": name}, "limit": "dead"})

`limit` names a kind of line that may come in floods. Of each kind at most five lines are written every ten seconds, and
the next one written says how many were left out.

A write to a terminal that was stopped with Ctrl-S, or to a pipe that nobody reads, may never return. A process that
must not wait for its reader calls `LineHandler.write_in_background`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from jobpool.message.printable import json_text, one_line, printable

# Attributes of every record; others came through `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fields", "limit"}

STACK_FIELDS = "stack", "trace"
"""Fields that stand below their line of text, if they have several lines."""

JOB_LOG = "jobpool.job"
"""Name of the logger of what handlers print and log. A line of it begins with whose it is, which nobody can forge."""

COLOURS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
EVENT_WIDTH = 28
UNKNOWN_COLUMNS = 80  # width of a terminal that says 0, as one without a window does

MAX_UNWRITTEN_BYTES = 1024 * 1024
"""Bytes of the log that are kept for a reader that stands still. Later lines are left out, and counted."""

MAX_BURST_LINES, BURST_WINDOW_S = 5, 10.0  # lines of a kind that are written, in this time
DRAIN_LIMIT_S = 2.0  # seconds for which the end of a process waits for the reader of its log


def configure(level: str = "info", style: str = "text", stream: TextIO | None = None) -> LineHandler:
    """Send the logger `jobpool` to `stream` (None = stderr), in place of what an earlier call set up.

    The warnings of libraries (a broker's client, say) go there too, in the same `style`: `text` or `json`.
    """
    stream = stream or sys.stderr
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter(colour=is_colourful(stream)))
    logger = logging.getLogger("jobpool")
    for each in (logger, logging.getLogger()):
        for old in [found for found in each.handlers if isinstance(found, LineHandler)]:
            each.removeHandler(old)
        each.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


def is_colourful(stream: TextIO) -> bool:
    """Return whether colours belong on `stream`: a terminal that is not dumb, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the record's fields besides its message, in their order."""
    fields = {key: value for key, value in vars(record).items() if key not in STANDARD}
    fields.update(getattr(record, "fields", None) or {})
    return fields


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes records above a status line, such as a progress bar, that stays the last line of the terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._status = ""
        self._limit = RateLimit()
        self.addFilter(self._limit)
        self._background: BackgroundStream | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record. Called by logging, under the handler's lock."""
        try:
            if self._background is not None and record.name == JOB_LOG and self._background.refuses():
                return  # a handler's lines leave room for the pool's own
            line = self.format(record) + self.terminator
            self.stream.write(f"\r\x1b[K{line}{self._status}" if self._status else line)
            self.flush()
        except Exception:  # noqa: BLE001 - logging's own rule: an error here is reported, and disturbs nobody
            self.handleError(record)

    def status(self, text: str | None) -> None:
        """Show `text`, one line, in place of what was shown; "" leaves that standing and ends it, None wipes it.

        It is cut to the width of the terminal: a line that goes on in the next one could not be wiped.
        """
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(self.stream.fileno()).columns or UNKNOWN_COLUMNS
            text = text and text[: columns - 1]
        if text == self._status:
            return
        with self.lock or contextlib.nullcontext():
            if text:
                self.stream.write(f"\r\x1b[K{text}")
            elif self._status:
                self.stream.write("\n" if text is not None else "\r\x1b[K")
            self._status = text or ""
            self.flush()

    def write_in_background(self) -> None:
        """Leave the writing to a thread from now on, up to `close`; no caller waits for the reader any more.

        For a process that logs here until it ends: logging calls `close` at the exit of the interpreter. A fork writes
        by itself again. A stream without a descriptor, which cannot stand still, stays as it is.
        """
        direct = self.stream
        try:
            self._background = BackgroundStream(direct, self._left_out)
        except (OSError, ValueError):
            return
        self.setStream(cast("TextIO", self._background))
        os.register_at_fork(after_in_child=lambda: setattr(self, "stream", direct))

    def close(self) -> None:
        """Write what is left. Blocks for at most `DRAIN_LIMIT_S` seconds, and only if nobody reads."""
        for event, count in self._limit.take().items():
            record = _warning("log lines of this kind were left out: there were too many", kind=event, lines=count)
            self.stream.write(self.format(record) + self.terminator)
        if self._background is not None:
            self._background.finish(DRAIN_LIMIT_S)
        super().close()

    def _left_out(self, count: int) -> str:
        text = "log lines were left out: they could not be written in time"
        return self.format(_warning(text, lines=count)) + self.terminator


def _warning(text: str, **fields: object) -> logging.LogRecord:
    about = {"name": "jobpool", "levelno": logging.WARNING, "levelname": "WARNING", "msg": text}
    return logging.makeLogRecord(about | fields)


class BackgroundStream(io.TextIOBase):
    """A text stream that keeps what is written to it, and a thread that writes it to the descriptor of `stream`.

    Nothing else should write to `stream`; without a descriptor it raises `OSError` or `ValueError`. `left_out` returns
    the line that tells how many lines were left out.
    """

    # Nothing here writes through `stream` itself. A thread that is stuck in such a write holds the lock of the buffer,
    # and then Python aborts at the exit of the interpreter.

    def __init__(self, stream: TextIO, left_out: Callable[[int], str]) -> None:
        stream.flush()
        self._fd = stream.fileno()
        self._encoding = stream.encoding or "utf-8"
        self._describe = left_out
        self._entries: deque[tuple[bytes, int]] = deque()
        self._size = self._left_out = 0
        self._is_full = self._is_finished = False
        self._is_torn = False  # the last line was cut short, by a full disk say
        self._changed = threading.Condition()  # its lock may be taken twice: a signal handler may write
        self._thread = threading.Thread(target=self._write_out, name="log", daemon=True)
        self._thread.start()

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str, /) -> int:
        """Keep `text` for the thread, or leave it out. Never waits for the reader."""
        data = text.encode(self._encoding, "backslashreplace")
        with self._changed:
            if self._is_full or self._is_finished:
                self._left_out += text.count("\n")
                return len(text)
            self._entries.append((data, text.count("\n")))
            self._size += len(data)
            self._is_full = self._size >= MAX_UNWRITTEN_BYTES
            self._changed.notify()
        return len(text)

    def refuses(self) -> bool:
        """Leave a line out if more than half of what is kept for a slow reader is there; return whether it is so."""
        if self._size <= MAX_UNWRITTEN_BYTES // 2:
            return False
        with self._changed:
            self._left_out += 1
        return True

    def finish(self, limit: float) -> None:
        """Write what is left, and leave out whatever comes later. Blocks for at most `limit` seconds."""
        with self._changed:
            self._is_finished = True
            self._changed.notify()
        self._thread.join(limit)

    def _write_out(self) -> None:
        written = True
        while (entry := self._next(written)) is not None:
            data, lines = entry
            written = self._write(data)
            if not written:
                with self._changed:
                    self._left_out += lines

    def _next(self, written: bool) -> tuple[bytes, int] | None:
        """Return the next bytes and how many lines they stand for; None at the end. `written`: the last ones were."""
        with self._changed:
            while not self._entries:
                self._is_full = False
                if self._left_out and written:  # told where they are missing; after a failure the next line tries first
                    count, self._left_out = self._left_out, 0
                    return self._describe(count).encode(self._encoding, "backslashreplace"), count
                if self._is_finished:
                    return None
                self._changed.wait()
            data, lines = self._entries.popleft()
            self._size -= len(data)
            return data, lines

    def _write(self, data: bytes) -> bool:
        """Write it, however long that takes; return False if the descriptor refuses it, as on a full disk."""
        if self._is_torn:
            data = b"\n" + data
        try:
            while data:
                try:
                    count = os.write(self._fd, data)
                    self._is_torn = count < len(data) and data[count - 1 : count] != b"\n"
                    data = data[count:]
                except BlockingIOError:  # someone who shares the descriptor has made it so
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll()
        except (OSError, MemoryError):
            return False
        return True


class TextFormatter(logging.Formatter):
    """`14:03:07.512 WARNING  child died                   slot=3 cause=SIGSEGV`, local time."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        fields = fields_of(record)
        if record.name == JOB_LOG:
            for key in ("left_out", "trace_id"):
                fields.pop(key, None)
            whose = " ".join(
                one_line(f"slot {value}" if key == "slot" else str(value)) for key, value in fields.items()
            )
            event, fields = f"{whose}: {printable(record.getMessage())}".replace("\n", "\n  "), {}
        else:
            event = one_line(record.getMessage())
        level = f"{record.levelname:<8}"
        if self._colour:
            level = f"\x1b[{COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        line = f"{moment:%H:%M:%S}.{int(record.msecs):03d} {level} " + (f"{event:<{EVENT_WIDTH}} " if fields else event)
        stacks = [str(fields.pop(key)).rstrip("\n") for key in STACK_FIELDS if "\n" in str(fields.get(key))]
        line += " ".join(f"{one_line(key)}={_plain(value)}" for key, value in fields.items())
        if record.exc_info:
            stacks.append(self.formatException(record.exc_info))
        # Indented, because an error's text may hold lines that look like ours.
        return "".join([line, *("\n  " + printable(stack).replace("\n", "\n  ") for stack in stacks)])


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
    """A filter that thins out floods of records that carry `limit`; all others pass. See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written. Keep it short: logging may call it under the handler's lock."""
        limit = getattr(record, "limit", None)
        if limit is None:
            return True
        now = time.monotonic()
        kind = self._kinds.setdefault(str(limit), _Kind(now))
        if now - kind.since >= BURST_WINDOW_S:
            kind.since, kind.written = now, 0
        if kind.written >= MAX_BURST_LINES:
            kind.left_out += 1
            return False
        kind.written += 1
        if kind.left_out:
            record.left_out, kind.left_out = kind.left_out, 0
        return True

    def take(self) -> dict[str, int]:
        """Return how many lines of each kind were left out and not told yet, and forget them."""
        found = {name: kind.left_out for name, kind in self._kinds.items() if kind.left_out}
        self._kinds.clear()
        return found


@dataclass(slots=True)
class _Kind:
    """The number of lines of one kind written since `since` and left out."""

    since: float
    written: int = 0
    left_out: int = 0


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    # One record is one line, for any error text; JSON's escapes are well known.
    return json_text(text) if not text or set(text) & set(' \t\r\n"=') else printable(text)
