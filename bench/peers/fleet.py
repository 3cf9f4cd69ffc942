"""How each peer's workers are started: as its own documentation makes them quick, keeping what it promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run one of them.

    Attributes:
        app: Its module in this package.
        words: The program and its arguments; `{workers}` is filled in.
        programs: How many of that program.
        workers: Processes of each that run jobs; None = as many as the plan says.
        environment: Read by the app, or by the peer itself.
    """

    app: str
    words: tuple[str, ...]
    programs: int = 1
    workers: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def processes(self, workers: int) -> int:
        """Return how many processes run jobs."""
        return self.programs * (self.workers or workers)

    def command(self, workers: int) -> list[str]:
        """Return the words, filled in."""
        return [word.format(workers=workers) for word in self.words]


_CELERY = (
    *("celery", "-A", "bench.peers.celery_app", "worker", "--pool", "prefork", "--concurrency", "{workers}"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"),
)
CELERY = Peer("celery_app", _CELERY)
CELERY_LATE = Peer("celery_app", _CELERY, environment={"BENCH_ACKS_LATE": "1"})

DRAMATIQ = Peer(
    "dramatiq_app",
    ("dramatiq", "bench.peers.dramatiq_app", "--processes", "{workers}", "--threads", "1"),
    environment={"dramatiq_queue_prefetch": "64"},
)
"""By default it prefetches 2 for one thread, which halves its rate; 64 was the quickest of 2, 8, 16, 64 and 256."""

HUEY = Peer(
    "huey_app",
    ("huey_consumer", "bench.peers.huey_app.huey", "-w", "{workers}", "-k", "process", "-q", "--no-periodic"),
)

PROCRASTINATE = Peer(
    "procrastinate_app",
    ("procrastinate", "--app", "bench.peers.procrastinate_app.app", "worker", "--concurrency", "4"),
    programs=4,
    workers=1,
)
"""Sixteen jobs at a time: 4 processes of 4 were quicker than 1 of 16, 2 of 8 and 16 of 1."""


def pgqueuer(batch: int) -> Peer:
    """Return two processes, one a core, with any number of jobs at a time; `batch` of them in one fetch."""
    return Peer("pgqueuer_app", ("python", "-m", "bench.peers.pgqueuer_app", str(batch)), programs=2, workers=1)


PGQUEUER = pgqueuer(10)
"""With its default batch, which is that of its own benchmark."""

PGQUEUER_BATCHES = pgqueuer(100)
"""As its guide to tuning has it for short jobs."""
