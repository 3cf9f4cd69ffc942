"""What a backend must offer to be tested: a harness. Adding a backend is a class here and a line in `HARNESSES`.

A harness owns one store, empty at the start. `open` gives any number of clients of it. Time moves when `advance` is
called: by turning a manual clock, or, for a broker with a clock of its own, by really waiting.
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobpool.backend import Capabilities, QueueBackend
from jobpool.clock import ManualClock
from jobpool.definition import JobDefinition
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sync import SyncBackend

Opener = Callable[[], QueueBackend]


class Harness(ABC):
    """One empty store.

    Attributes:
        capabilities: Of the backend; tests are skipped by its fields and by nothing else.
        tick: The shortest time, in seconds, that `advance` can tell apart.
        folder: A private directory.
    """

    capabilities: ClassVar[Capabilities]
    tick: ClassVar[float] = 1e-6

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[QueueBackend] = []

    @abstractmethod
    def connect(self) -> QueueBackend:
        """A client of the store, on the harness's clock."""

    @abstractmethod
    def opener(self) -> Opener:
        """Opens clients of one more store, on the machine's clock; picklable where the store is shared by processes."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let time pass."""

    @abstractmethod
    def now(self) -> float:
        """Unix time on the broker's clock."""

    def open(self) -> QueueBackend:
        """A client of the store; closed at the end of the test."""
        return self.keep(self.connect())

    def open_live(self) -> QueueBackend:
        """A client of one more store, on the machine's clock: for what really waits."""
        return self.keep(self.opener()())

    def expire_leases(self, ttl: float) -> None:
        """Let the leases end that were taken for `ttl` seconds just now."""
        self.advance(ttl)

    def crowd(self, opener: Opener, work: Callable[..., Any], count: int) -> list[Any]:
        """Do `work(backend, number)` `count` times at once, as far apart as the backend allows: in processes."""
        with self.executor(count) as executor:
            return list(executor.map(partial(_run, opener, work), range(count)))

    def executor(self, count: int) -> Executor:
        return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))

    def close(self) -> None:
        for backend in self._opened:
            backend.close()

    def keep(self, backend: QueueBackend) -> QueueBackend:
        """Close this client at the end of the test."""
        self._opened.append(backend)
        return backend


def _run(opener: Opener, work: Callable[..., Any], number: int) -> Any:
    backend = opener()
    try:
        return work(backend, number)
    finally:
        backend.close()


class _TurnedClock(Harness):
    """A harness of an embedded backend, which takes a clock."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clock = ManualClock()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def now(self) -> float:
        return self.clock.wall()


class MemoryHarness(_TurnedClock):
    """The store is the backend: all clients are one, and a crowd is made of threads."""

    capabilities = MemoryBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._backend = MemoryBackend(clock=self.clock)

    def connect(self) -> QueueBackend:
        return self._backend

    def opener(self) -> Opener:
        live = MemoryBackend()
        return lambda: live

    def executor(self, count: int) -> Executor:
        return ThreadPoolExecutor(count)


class SqliteHarness(_TurnedClock):
    capabilities = SqliteBackend.capabilities

    def connect(self) -> QueueBackend:
        return SqliteBackend(str(self.folder / "turned.db"), clock=self.clock)

    def opener(self) -> Opener:
        return partial(SqliteBackend, str(self.folder / "live.db"), timeout=30.0)


class SyncHarness(_TurnedClock):
    capabilities = SyncBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ran: list[JobDefinition] = []

    def connect(self) -> QueueBackend:
        return SyncBackend(self.ran.append, clock=self.clock)

    def opener(self) -> Opener:
        return lambda: SyncBackend(self.ran.append)

    def executor(self, count: int) -> Executor:
        return ThreadPoolExecutor(count)


HARNESSES: dict[str, type[Harness]] = {
    "memory": MemoryHarness,
    "sqlite": SqliteHarness,
    "sync": SyncHarness,
}


def skip_by_capability(node: pytest.Item, kind: type[Harness]) -> None:
    """Skip a test whose markers `needs` and `lacks` do not fit this backend."""
    for marker, wanted in (("needs", True), ("lacks", False)):
        for mark in node.iter_markers(marker):
            for field in mark.args:
                if bool(getattr(kind.capabilities, field)) is not wanted:
                    pytest.skip(f"Capabilities.{field} is {not wanted}")
