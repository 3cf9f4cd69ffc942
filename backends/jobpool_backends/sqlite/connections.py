"""Connections of this process to one database file, none of which is open while it forks.

SQLite counts its locks per process and file. A forked process would inherit the counts without the locks: it could wait
forever for itself, or remove the log that others write to. So a fork waits until each connection is given back, and
closes it. Only a transaction that outlasts that wait is still there; then the forked process is refused the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from contextlib import suppress
from functools import cache

from jobpool.errors import BackendUnavailable
from jobpool_backends.inotify import wake
from jobpool_backends.shared import IdleConnections

_GONE = (
    "database file {path} was removed or replaced while it was in use: what is written now, others do not see. Stop all"
    " that use the database, move back what was moved, then start them again"
)
_SPOILT = (
    "this process was forked while its parent had a transaction open on database {path}, and SQLite does not survive"
    " that: fork when no call is under way, or start the process with spawn"
)
_POLL_S = 0.001

gate = threading.RLock()
"""Held for a fork, and to open a connection; or several at once. Reentrant, for a signal's handler that forks."""
_all: weakref.WeakSet[FileConnections] = weakref.WeakSet()
_spoilt: set[str] = set()  # files that were in use when this process was forked


class Connection(sqlite3.Connection):
    """A connection that remembers whether it was closed, and the files that were in use when it was opened."""

    files: dict[str, int | None]
    is_closed = False

    def close(self) -> None:
        super().close()
        self.is_closed = True

    def __del__(self) -> None:  # else Python warns, from 3.13 on: an application may leave its `Jobs` open
        with suppress(sqlite3.Error):  # it was never opened
            self.close()


class _ClosedStack(list[sqlite3.Connection]):
    """The idle connections during a fork: each is closed in place of kept."""

    def append(self, connection: sqlite3.Connection) -> None:
        connection.close()


class FileConnections(IdleConnections[sqlite3.Connection]):
    """The connections to one file. A fork waits `timeout` seconds for those that are lent."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path = os.path.abspath(path)  # a later change of the working directory must not change the file
        super().__init__(f"database {path}")
        self.is_forking = False
        """Set while a fork waits for the connections: who keeps one for long gives it back."""
        self._timeout = timeout
        self._real = os.path.realpath(path)  # SQLite puts its files beside the target of a link
        self.shared = f"{self._real}-shm"
        self._files: dict[str, int | None] = dict.fromkeys((path, f"{self._real}-wal", self.shared))
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        _hook_forks()
        with gate:
            _all.add(self)

    def check_process(self) -> None:
        """Raise as `check_usable`, without a look at the files."""
        super().check_usable()

    def check_usable(self) -> None:
        super().check_usable()
        files = self._files
        for name, inode in files.items():
            try:
                same = os.stat(name).st_ino == inode
            except OSError:
                same = False
            if not same and inode is not None and files is self._files:
                with gate:
                    if name == self.path or self._has_open():
                        raise BackendUnavailable(_GONE.format(path=name))
                    self._forget_files()  # SQLite took them away with the last connection, which an interrupt spoilt

    def open(self) -> Connection:
        """Open a connection. Blocks for a fork that is under way."""
        with gate:
            if self._real in _spoilt:
                raise BackendUnavailable(_SPOILT.format(path=self.path))
            connection = sqlite3.connect(
                self.path,
                timeout=0.0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=Connection,
            )
            connection.files = self._files
            self._open.add(connection)
        return connection

    def note_files(self, connection: Connection) -> None:
        """Note the files that this first connection has opened: they stay the same until the last one is closed."""
        for name, inode in connection.files.items():
            if inode is None:
                try:
                    connection.files[name] = os.stat(name).st_ino
                except OSError:
                    raise BackendUnavailable(_GONE.format(path=name)) from None

    def leave(self) -> None:
        """Close all connections before a fork. Blocks until they are given back, or the time is over."""
        self.is_forking = True
        idle, self._idle = self._idle, _ClosedStack()
        self._forget_files()
        wake(self.path)
        give_up = time.monotonic() + self._timeout
        while True:
            with suppress(IndexError):  # another thread may take one, or still give one back here
                while True:
                    idle.pop().close()
            if not self._has_open() or time.monotonic() >= give_up:
                return
            time.sleep(_POLL_S)

    def go_on(self) -> None:
        """Allow connections again, in either process. Called again, it does what an interrupt has left."""
        if not self.is_forking:
            return
        if self.is_inherited and self._has_open():
            _spoilt.add(self._real)
        self._idle = []
        self.is_forking = False

    def _forget_files(self) -> None:
        """Forget those beside the database, which SQLite makes anew."""
        self._files = dict.fromkeys(self._files) | {self.path: self._files.get(self.path)}

    def _has_open(self) -> bool:
        return not all(connection.is_closed for connection in self._open)


def _before_fork() -> None:
    gate.acquire()
    for connections in list(_all):
        connections.leave()


def _after_fork() -> None:
    try:
        _go_on()
    finally:
        try:
            _go_on()  # again, in case that was interrupted: a signal's handler may raise here
        finally:
            gate.release()  # the forked thread is its owner in the child, too


def _go_on() -> None:
    for connections in list(_all):
        connections.go_on()


@cache
def _hook_forks() -> None:
    if hasattr(os, "register_at_fork"):  # Windows cannot fork
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
