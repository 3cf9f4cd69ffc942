"""The lines that a handler prints and logs, on their way to the pool's log.

Each line is a frame of its own on the child's channel, at once: a handler that hangs has been heard until then. A
handler that prints faster than `SAID_PER_S` pays for it alone: lines beyond are counted here and never sent. A line
never waits for the master, and its secrets are masked before it leaves.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from jobpool.ipc.frames import MAX_SAID_BYTES, Said
from jobpool.ipc.line_budget import SAID_PER_S, LineBudget
from jobpool.message.capped_text import cap_text
from jobpool.message.masking import Masker

_SUMMARY_EVERY_S = 0.1  # seconds between two frames that only tell how many lines were left out


class Lines:
    """A writer of lines to the master.

    Takes no lock: the alarm may raise anywhere. Threads that write at the same time may lose a line to each other.

    Attributes:
        level: Lowest level that is sent; printed text is INFO.
        nonce: The attempt whose lines these are; 0 = none runs, and text is of the app's import.
    """

    def __init__(self, channel: socket.socket, level: int, masker: Masker) -> None:
        self._channel = channel
        self.level = level
        self._masker = masker
        self._pending = bytearray()
        self._budget = LineBudget()
        self._quiet = False
        self._left_out = self._dropped_of = 0
        self._told_at = 0.0
        self.nonce = 0

    def write(self, data: bytes) -> None:
        """Add printed text; send each line that it ends."""
        if self.level > logging.INFO:
            return
        if b"\n" not in data:
            self._keep(data)
            return
        if b"-----BEGIN" in data:  # a key has several lines, and only the first would tell what they are
            data = self._masker.text(data.decode("utf-8", "replace")).encode("utf-8", "replace")
        *lines, rest = data.split(b"\n", self._allowed() or 1)
        for line in lines:
            self._keep(line)
            whole, self._pending = bytes(self._pending).removesuffix(b"\r"), bytearray()
            text = whole[:MAX_SAID_BYTES].decode("utf-8", "replace")
            self.say(logging.INFO, f"{text}…" if len(whole) > MAX_SAID_BYTES else text)
        if b"\n" in rest:
            self._drop(rest.count(b"\n"))
            rest = rest.rpartition(b"\n")[2]
        self._keep(rest)

    def end_line(self) -> None:
        """Send a line that was not ended."""
        if self._pending:
            self.write(b"\n")

    def end(self) -> None:
        """Send what is left of an attempt: a line that was not ended, and how many were left out."""
        if not (self._pending or self._left_out):  # nearly always
            return
        self.end_line()
        if self._left_out and monotonic() - self._told_at > _SUMMARY_EVERY_S:
            self._send(Said(self._dropped_of, logging.INFO, "", left_out=self._left_out))

    def leave(self) -> None:
        """Send how many lines were left out and not told yet: the child ends."""
        self._told_at = 0.0
        self.end()

    def say(self, level: int, text: str, logger: str = "") -> None:
        """Send a line, or a log record of several; count it if there is no room."""
        if level < self.level or not text.strip():
            return
        if self._allowed() < 1:
            self._drop(1)
            return
        if self._budget.spend(1) < 1:
            self._quiet = True
        if self._left_out and self._dropped_of != self.nonce:
            self._send(Said(self._dropped_of, logging.INFO, "", left_out=self._left_out))
        shown = cap_text(self._masker.text(text), 2 * MAX_SAID_BYTES)
        self._send(Said(self.nonce, level, shown, logger[:200], self._left_out))

    def _send(self, said: Said) -> None:
        try:
            self._channel.send(said.encode(), socket.MSG_DONTWAIT)
            if said.left_out:
                self._left_out, self._told_at = 0, monotonic()
        except OSError:  # the master stands still, or is gone
            self._drop(bool(said.text))

    def _drop(self, count: int) -> None:
        self._left_out, self._dropped_of = self._left_out + count, self.nonce

    def _allowed(self) -> int:
        """Return how many lines may go now; after too many none for a second, and then a second's worth of them."""
        left = self._budget.left()
        self._quiet = self._quiet and left < SAID_PER_S
        return 0 if self._quiet else int(left)

    def _keep(self, data: bytes) -> None:
        """Add to the line that has not ended. A carriage return begins it anew, as on a terminal."""
        restart = data.rfind(b"\r", 0, max(0, len(data) - 1))  # the last one may be half of a line's end
        if restart >= 0 or (data and self._pending[-1:] == b"\r"):
            data = data[restart + 1 :]
            self._pending.clear()
        self._pending += data[: max(0, MAX_SAID_BYTES + 1 - len(self._pending))]


class LogHandler(logging.Handler):
    """Python's last resort for records of an app that has set up no logging: captured as text, and sent with level."""

    def __init__(self, keep: Callable[[bytes], None], lines: Lines) -> None:
        super().__init__()
        self._keep = keep
        self._lines = lines
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            self._keep(f"{text}\n".encode("utf-8", "backslashreplace"))
            if os.getpid() == self._pid:
                self._lines.say(record.levelno, text, record.name)
        except Exception:  # noqa: BLE001 - logging's own rule: an error here is reported, and disturbs nobody
            self.handleError(record)


def leave_unconfigured() -> None:
    """Let `logging.basicConfig()` without arguments do nothing, which `logging.info` and the like call: see below."""
    configure = logging.basicConfig

    def basic_config(**kwargs: Any) -> None:
        if kwargs:
            configure(**kwargs)

    logging.basicConfig = basic_config


def log_unconfigured(keep: Callable[[bytes], None], lines: Lines) -> None:
    """Send the records of an app that has set up no logging, from INFO on. Logging that is set up later goes before it.

    Its root logger, which Python leaves at WARNING, passes INFO too.
    """
    logging.lastResort = LogHandler(keep, lines)
    root = logging.getLogger()
    if not root.handlers and root.level == logging.WARNING:
        root.setLevel(max(logging.INFO, lines.level))
