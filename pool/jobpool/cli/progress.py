"""The progress bar of a pool that ends by itself: one line below the log, drawn by a thread from the scoreboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from jobpool.broker.opening import open_backend
from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.units import format_duration
from jobpool.settings import Settings
from jobpool.telemetry.logs import LineHandler

REDRAW_PAUSE_S = 0.2
BAR_CHARS = 30


def backlog(pool: Settings) -> int:
    """Count the messages that wait, are delayed or leased in the pool's queues. Raises `BackendUnavailable`.

    Where the settings name no queue, in all that the broker knows: the app is not imported yet.
    """
    with closing(open_backend(pool.backend)) as backend:
        queues = pool.queue_names or (backend.queues() if backend.capabilities.makes_queues else ())
        return sum(backend.stats(queue).pending for queue in queues)


@contextmanager
def progress(path: str, total: int, lines: LineHandler) -> Iterator[None]:
    """Draw while the block runs.

    Args:
        path: Of the scoreboard, which may appear later.
        total: Messages at the start; more may come.
        lines: The log, which the bar stays below.
    """
    since, over = time.monotonic(), threading.Event()

    def draw() -> None:
        board = None
        while True:
            is_last = over.wait(REDRAW_PAUSE_S)
            with suppress(OSError, ValueError):
                board = board or Scoreboard.open(path)
            if board is not None and not (header := board.header.read()).torn:
                lines.status(bar(header, total, time.monotonic() - since))
            if is_last:
                break
        if board is not None:
            board.close()
        lines.status("")

    thread = threading.Thread(target=draw, name="jobpool-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def bar(header: HeaderView, total: int, seconds: float) -> str:
    """Return the line: how many messages reached their end, of how many, how fast, and what went wrong on the way."""
    done = header.succeeded + header.dead + header.skipped + header.rejected
    total = max(total, done)
    filled = BAR_CHARS * done // total if total else BAR_CHARS
    rate = done / seconds if seconds > 0 else 0.0
    left = f"  {format_duration((total - done) / rate)} left" if rate and done < total else ""
    shown = f"{'█' * filled}{'░' * (BAR_CHARS - filled)} {done:,}/{total:,}  {rate:,.0f} jobs/s{left}"
    counts = {"retried": header.requeued, "timed out": header.timed_out, "crashed": header.crashed, "dead": header.dead}
    return shown + "".join(f"  {count:,} {word}" for word, count in counts.items() if count)
