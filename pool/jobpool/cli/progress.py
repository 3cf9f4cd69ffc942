"""The progress bar of a pool that ends by itself: one line below the log, drawn by a thread from the scoreboard."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.units import format_duration
from jobpool.telemetry.logs import LineHandler

REDRAW_PAUSE_S = 0.2
BAR_CHARS = 30


class Progress:
    """Draws while the block runs.

    Args:
        board: Path of the scoreboard, which may appear later.
        total: Messages at the start; more may come.
        lines: The log, which the bar stays below.
    """

    def __init__(self, board: str, total: int, lines: LineHandler) -> None:
        self._path = board
        self._total = total
        self._lines = lines
        self._since = time.monotonic()
        self._board: Scoreboard | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="jobpool-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        board = self._board or self._open()
        if board is not None:
            self._show(board.header.read())
            board.close()
        self._lines.status("")

    def _draw(self) -> None:
        while not self._over.wait(REDRAW_PAUSE_S):
            board = self._board = self._board or self._open()
            if board is not None:
                self._show(board.header.read())

    def _open(self) -> Scoreboard | None:
        try:
            return Scoreboard.open(self._path)
        except (OSError, ValueError):
            return None

    def _show(self, header: HeaderView) -> None:
        if not header.torn:
            self._lines.status(bar(header, self._total, time.monotonic() - self._since))


def bar(header: HeaderView, total: int, seconds: float) -> str:
    """Return the line: how many messages reached their end, of how many, how fast, and what went wrong on the way."""
    done = header.succeeded + header.dead + header.skipped + header.rejected
    total = max(total, done)
    filled = BAR_CHARS * done // total if total else BAR_CHARS
    rate = done / seconds if seconds > 0 else 0.0
    left = f"  {format_duration((total - done) / rate)} left" if rate and done < total else ""
    return f"{'█' * filled}{'░' * (BAR_CHARS - filled)} {done:,}/{total:,}  {rate:,.0f} jobs/s{left}{_trouble(header)}"


def _trouble(header: HeaderView) -> str:
    counts = (("retried", header.requeued), ("timed out", header.timed_out), ("crashed", header.crashed))
    return "".join(f"  {count:,} {word}" for word, count in (*counts, ("dead", header.dead)) if count)
