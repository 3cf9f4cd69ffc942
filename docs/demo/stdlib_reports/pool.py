"""Enqueueing the demo's jobs, running a pool on them, and looking at what became of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import jobpool
from jobpool.broker.values import Message, MessageFilter, State
from stdlib_reports import jobs
from stdlib_reports.shelf import Shelf
from stdlib_reports.summary import DeadLetter, Picture
from stdlib_reports.survey import subjects

KILL_GRACE = 1.0
"""Seconds between a timeout and the kill."""

MAX_CRASHES = 2
"""Crashes that one message may cause; the third makes it a dead letter. The default is 5: this is for haste."""


STOP_WITHIN = 35.0
"""Seconds in which a pool that was told to stop has to be gone: its `stop_grace` of 25 s, and some more."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The ids of the jobs."""

    reports: tuple[str, ...]
    hang: str
    crash: str
    flaky: str

    @property
    def count(self) -> int:
        return len(self.reports) + 3


def url_of(shelf: Shelf) -> str:
    """The embedded default: one SQLite file, no server."""
    return f"sqlite:///{(shelf.folder / 'jobs.db').resolve()}"


def enqueue(shelf: Shelf, most: int | None = None) -> Enqueued:
    """Enqueue everything in one round trip, the three that misbehave first; at most `most` reports."""
    folder = str(shelf.folder.resolve())
    builders = [jobs.hang.define(folder=folder), jobs.crash.define(folder=folder), jobs.flaky.define(folder=folder)]
    builders += [jobs.report.define(subject=subject, folder=folder) for subject in subjects()[:most]]
    with closing(jobpool.Jobs(url_of(shelf))) as producer:
        hang, crash, flaky, *reports = producer.enqueue_many([builder.to_definition() for builder in builders])
    return Enqueued(tuple(reports), hang, crash, flaky)


def command(shelf: Shelf, workers: int) -> list[str]:
    """The pool, as one would type it."""
    return [
        str(Path(sys.executable).with_name("jobpool")),
        *("--workers", str(workers)),
        *("--queue", jobs.QUEUE),
        *("--app", "stdlib_reports.jobs"),
        *("--backend", url_of(shelf)),
        *("--kill-grace", str(KILL_GRACE)),
        *("--max-crashes", str(MAX_CRASHES)),
        *("--retry", "fixed base=300ms"),
        "--until-empty",
    ]


@contextmanager
def running(shelf: Shelf, workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """A pool, its log in the shelf's folder; ended with the block, if it has not ended by itself."""
    with (shelf.folder / "jobpool.log").open("wb") as log:
        # A process group of its own: Ctrl-C reaches the demo alone, and the pool gets one signal from it, not two.
        pool = subprocess.Popen(
            command(shelf, workers), stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
        try:
            yield pool
        finally:
            _stop(pool)


def _stop(pool: subprocess.Popen[bytes]) -> None:
    """Ask it to drain; one that does not answer is killed, and its children die with it."""
    pool.terminate()
    try:
        pool.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        pool.kill()
        pool.wait()


def left(backend: jobpool.QueueBackend) -> int:
    """Messages that are neither acked nor dead."""
    return backend.stats(jobs.QUEUE).pending


def picture(shelf: Shelf, enqueued: Enqueued, pool_exit: int) -> Picture:
    """What became of everything."""
    with closing(jobpool.open_backend(url_of(shelf))) as backend:
        where = MessageFilter(queue=jobs.QUEUE, states=(State.DEAD,))
        dead = tuple(_letter(message) for message in backend.list_messages(where, limit=1000))
        pending = left(backend)
    return Picture(
        reports=enqueued.reports,
        hang=enqueued.hang,
        crash=enqueued.crash,
        flaky=enqueued.flaky,
        pages=len(shelf.totals()),
        pending=pending,
        dead=dead,
        ledger=tuple(shelf.entries()),
        allowed=jobs.HANG_TIMEOUT + KILL_GRACE,
        crashes=MAX_CRASHES + 1,
        pool_exit=pool_exit,
    )


def _letter(message: Message) -> DeadLetter:
    return DeadLetter(
        id=message.id,
        handler=message.handler,
        reason=message.reason or "",
        how=message.death.how if message.death else "",
        error=message.last_error or "",
        died_at=message.died_at or 0.0,
    )
