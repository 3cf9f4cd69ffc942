"""Harnesses of the backends that need no server."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from jobpool.broker.backend import QueueBackend
from jobpool.broker.config_file import sqlite_url
from jobpool.broker.values import NewMessage, Ticket
from jobpool.message.definition import JobDefinition
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.in_transaction import ack
from jobpool_backends.sync import SyncBackend
from support.harnesses.base import Opener, TurnedClock, run


class OneProcess(TurnedClock):
    """A crowd is made of threads: the backend serves this process alone."""

    def crowd(self, opener: Opener, work: Callable[..., Any], count: int) -> list[Any]:
        with ThreadPoolExecutor(count) as executor:
            return list(executor.map(partial(run, opener, work), range(count)))


class MemoryHarness(OneProcess):
    """The store is the backend: all clients are one."""

    kind: ClassVar[type[MemoryBackend]] = MemoryBackend
    capabilities = MemoryBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._backend = self.kind(clock=self.clock)

    def connect(self, **options: Any) -> QueueBackend:
        url = f"{self.kind.scheme}://"
        return self.kind.from_url(url, clock=self.clock, **options) if options else self._backend

    def opener(self) -> Opener:
        live = self.kind()
        return lambda: live


class SqliteHarness(TurnedClock):
    """Each test has a copy of one empty database: to make its tables takes longer than most tests do."""

    capabilities = SqliteBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "turned.db"
        self._path.write_bytes(_empty_database())

    def connect(self, **options: Any) -> QueueBackend:
        return SqliteBackend.from_url(sqlite_url(self._path), clock=self.clock, **options)

    def own_connection(self, *, autocommit: bool = False) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None if autocommit else "DEFERRED")

    def ack_within(self, connection: Any, ticket: Ticket, messages: Sequence[NewMessage] = ()) -> Callable[[], bool]:
        return ack(connection, ticket, messages, clock=self.clock)

    def opener(self) -> Opener:
        return partial(SqliteBackend, str(self.folder / "live.db"), timeout=30.0)


@cache
def _empty_database() -> bytes:
    """Return the file of a database with our tables, as the last client leaves it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        with closing(SqliteBackend(str(path))) as backend:
            assert backend.queues() == []
        assert [file.name for file in Path(folder).iterdir()] == [path.name], "no log is left beside it"
        return path.read_bytes()


class SyncHarness(OneProcess):
    capabilities = SyncBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ran: list[JobDefinition] = []

    def connect(self, **options: Any) -> QueueBackend:
        return SyncBackend.from_url("sync://", runner=self.ran.append, clock=self.clock, **options)

    def opener(self) -> Opener:
        return lambda: SyncBackend(self.ran.append)
