"""How a pool gets on, told by a thread that reads the scoreboard.

On a terminal it is one line below the log: a bar for a pool that ends by itself, else a summary. Elsewhere it is a line
of the log from time to time, while jobs run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from jobpool.broker.opening import open_backend
from jobpool.errors import OUTAGES
from jobpool.ipc.board_layout import HeaderView, QueueDepth
from jobpool.message.units import format_duration
from jobpool.ops.runtime_dir import PoolFile
from jobpool.ops.top import PoolSample, Watcher
from jobpool.settings import Settings
from jobpool.telemetry.logs import LineHandler

REDRAW_PAUSE_S = 0.4
LOG_PAUSE_S = 10.0
BAR_CHARS = 30

log = logging.getLogger("jobpool.pool")


def expected(pool: Settings, queues: Sequence[str], ended: int) -> int | None:
    """Return how many messages end in this run; `ended` of them have. Blocks for a call to the broker a queue.

    None = nobody knows yet: the app that names the `queues` is imported yet, or the broker does not answer or refuses.
    """
    if pool.max_total and not pool.until_empty:
        return pool.max_total
    if not queues:
        return None
    try:
        with closing(open_backend(pool.backend)) as backend:
            found = ended + sum(backend.stats(queue).pending for queue in queues)
    except OUTAGES:
        return None
    return min(found, pool.max_total) if pool.max_total else found


@contextmanager
def progress(
    note: PoolFile, tell: Callable[[PoolSample, HeaderView], object], pause: float, *, last: bool = False
) -> Iterator[None]:
    """Call `tell` every `pause` seconds while the block runs, on a thread; with `last` once more at the end.

    `note`: of the pool. Its scoreboard may appear later.
    """
    over = threading.Event()

    def look() -> None:
        with Watcher(lambda: [note]) as watcher:
            while not over.wait(pause) or last:
                [sample] = watcher.sample()
                if sample.header is not None and not sample.header.torn:
                    tell(sample, sample.header)
                if over.is_set():
                    break

    thread = threading.Thread(target=look, name="jobpool-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def progress_bar(note: PoolFile, count: Callable[[int], int | None], lines: LineHandler) -> Iterator[None]:
    """Draw a bar below the log. `count` returns `expected` from the number that has ended; more may come."""
    since, total = time.monotonic(), None

    def draw(_: PoolSample, header: HeaderView) -> None:
        nonlocal total
        if total is None:
            total = count(done(header))
        if total is not None:
            lines.status(bar(header, total, time.monotonic() - since))

    with progress(note, draw, REDRAW_PAUSE_S, last=True):
        yield
    lines.status("")


@contextmanager
def live_summary(note: PoolFile, lines: LineHandler) -> Iterator[None]:
    """Keep a summary below the log while the block runs."""
    with progress(note, lambda *now: lines.status(summary(*now)), REDRAW_PAUSE_S):
        yield
    lines.status(None)


@contextmanager
def logged_summary(note: PoolFile, pause: float = LOG_PAUSE_S, *, awaits_delayed: bool = False) -> Iterator[None]:
    """Log a summary every `pause` seconds, while jobs run; with `awaits_delayed`, while jobs are delayed, too."""
    before, since = 0, time.monotonic()

    def tell(sample: PoolSample, header: HeaderView) -> None:
        nonlocal before, since
        now, ended, delayed = time.monotonic(), done(header), _delayed(header)
        if sample.busy or ended != before or (awaits_delayed and delayed):
            rate = round((ended - before) / max(0.001, now - since), 1)
            waiting = {"waiting": header.waiting} | ({"delayed": delayed} if delayed else {})
            fields = {"busy": sample.busy, **waiting, "done": ended, "jobs_per_second": rate}
            log.info("at work", extra={"fields": fields | _troubles(header)})
        before, since = ended, now

    with progress(note, tell, pause):
        yield


def done(header: HeaderView) -> int:
    """Return how many messages have reached their end."""
    return header.succeeded + header.dead + header.skipped + header.rejected


def bar(header: HeaderView, total: int, seconds: float) -> str:
    """Return the line: how many messages reached their end, of how many, how fast, and what went wrong on the way."""
    ended = done(header)
    total = max(total, ended)
    filled = BAR_CHARS * ended // total if total else BAR_CHARS
    rate = ended / seconds if seconds > 0 else 0.0
    left = f"  {format_duration((total - ended) / rate)} left" if rate and ended < total else ""
    shown = f"{'█' * filled}{'░' * (BAR_CHARS - filled)} {ended:,}/{total:,}  {rate:,.0f} jobs/s{left}"
    return shown + "".join(f"  {count:,} {word.replace('_', ' ')}" for word, count in _troubles(header).items())


def summary(sample: PoolSample, header: HeaderView) -> str:
    """Return the line: how busy the pool is, how many messages wait, are delayed and have reached their end, how fast.

    Parts that are not known yet are left out, and a rate of 0. The line is empty until the loop has published.
    """
    if not header.loop_at:
        return ""
    waiting = f"  {header.waiting:,} waiting" if header.waiting or header.depths else ""
    if delayed := _delayed(header):
        waiting += f"  {delayed:,} delayed"
    rate = f"  {sample.rate:,.1f} jobs/s" if sample.rate else ""
    shown = f"{sample.busy}/{header.workers} busy{waiting}  {done(header):,} ended{rate}"
    return shown + "".join(f"  {count:,} {word.replace('_', ' ')}" for word, count in _troubles(header).items())


def _delayed(header: HeaderView) -> int:
    return sum(one.delayed for one in QueueDepth.read(header.depths))


def _troubles(header: HeaderView) -> dict[str, int]:
    counts = {"retried": header.requeued, "timed_out": header.timed_out, "crashed": header.crashed, "dead": header.dead}
    return {word: count for word, count in counts.items() if count}
