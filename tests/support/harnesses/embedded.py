"""Harnesses of the backends that need no server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.broker.config_file import sqlite_url
from jobpool.message.definition import JobDefinition
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sync import SyncBackend
from support.harnesses.base import Opener, TurnedClock, run


class OneProcess(TurnedClock):
    """A crowd is made of threads: the backend serves this process alone."""

    def crowd(self, opener: Opener, work: Callable[..., Any], count: int) -> list[Any]:
        with ThreadPoolExecutor(count) as executor:
            return list(executor.map(partial(run, opener, work), range(count)))


class MemoryHarness(OneProcess):
    """The store is the backend: all clients are one."""

    capabilities = MemoryBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._backend = MemoryBackend(clock=self.clock)

    def connect(self, **options: Any) -> QueueBackend:
        return MemoryBackend.from_url("memory://", clock=self.clock, **options) if options else self._backend

    def opener(self) -> Opener:
        live = MemoryBackend()
        return lambda: live


class SqliteHarness(TurnedClock):
    capabilities = SqliteBackend.capabilities

    def connect(self, **options: Any) -> QueueBackend:
        return SqliteBackend.from_url(sqlite_url(self.folder / "turned.db"), clock=self.clock, **options)

    def opener(self) -> Opener:
        return partial(SqliteBackend, str(self.folder / "live.db"), timeout=30.0)


class SyncHarness(OneProcess):
    capabilities = SyncBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ran: list[JobDefinition] = []

    def connect(self, **options: Any) -> QueueBackend:
        return SyncBackend.from_url("sync://", runner=self.ran.append, clock=self.clock, **options)

    def opener(self) -> Opener:
        return lambda: SyncBackend(self.ran.append)
