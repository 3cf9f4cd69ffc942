"""Harnesses of the backends that need no server."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jobpool.backend import QueueBackend
from jobpool.definition import JobDefinition
from jobpool.opening import sqlite_url
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sync import SyncBackend
from support.harnesses.base import Opener, TurnedClock


class MemoryHarness(TurnedClock):
    """The store is the backend: all clients are one, and a crowd is made of threads."""

    capabilities = MemoryBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._backend = MemoryBackend(clock=self.clock)

    def connect(self, **options: Any) -> QueueBackend:
        return MemoryBackend.from_url("memory://", clock=self.clock, **options) if options else self._backend

    def opener(self) -> Opener:
        live = MemoryBackend()
        return lambda: live

    def executor(self, count: int) -> Executor:
        return ThreadPoolExecutor(count)


class SqliteHarness(TurnedClock):
    capabilities = SqliteBackend.capabilities

    def connect(self, **options: Any) -> QueueBackend:
        return SqliteBackend.from_url(sqlite_url(self.folder / "turned.db"), clock=self.clock, **options)

    def opener(self) -> Opener:
        return partial(SqliteBackend, str(self.folder / "live.db"), timeout=30.0)


class SyncHarness(TurnedClock):
    capabilities = SyncBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ran: list[JobDefinition] = []

    def connect(self, **options: Any) -> QueueBackend:
        return SyncBackend.from_url("sync://", runner=self.ran.append, clock=self.clock, **options)

    def opener(self) -> Opener:
        return lambda: SyncBackend(self.ran.append)

    def executor(self, count: int) -> Executor:
        return ThreadPoolExecutor(count)
