"""How large a run is, and where it works."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a run.

    Attributes:
        quick: Few samples: to see that all works, not to compare.
        tiny: Hardly any: for a test of the benchmarks themselves.
        workers: Children of the pools in `throughput`, `dispatch`, `redis` and `postgres`, and processes of the peers.
        urls: Backends for `throughput`; empty = memory and SQLite.
        jobs: No-op jobs in one sample; 0 = as many as suit.
        rounds: Of interleaved samples; 0 = as many as suit.
        directory: Where databases lie; None = a temporary one. Its disk is in the figures.
        broker_pids: Processes of a broker that is a server.
        peers: Also run other queues and pools; they need an environment of their own.
        against: Another checkout, for `start`: both take turns.
    """

    quick: bool = False
    tiny: bool = False
    workers: int = 16
    urls: tuple[str, ...] = ()
    jobs: int = 0
    rounds: int = 0
    directory: Path | None = None
    broker_pids: tuple[int, ...] = ()
    peers: bool = True
    against: Path | None = None

    def pick(self, full: int, quick: int, tiny: int = 1) -> int:
        """Return the size that suits."""
        return tiny if self.tiny else quick if self.quick else full

    def noops(self) -> int:
        """Return the number of no-op jobs in a sample."""
        return self.jobs or self.pick(40_000, 10_000, 200)

    def turns(self, full: int = 7, quick: int = 2) -> int:
        """Return the rounds of interleaved samples."""
        return self.rounds or self.pick(full, quick)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a new directory, gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="jobpool-bench-", dir=self.directory) as name:
            yield Path(name)

    @contextmanager
    def sqlite(self) -> Iterator[str]:
        """Yield the URL of a new database, gone afterwards."""
        with self.scratch() as directory:
            yield f"sqlite:///{directory}/bench.db"
