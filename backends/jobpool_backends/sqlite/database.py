"""Transactions on one database file, and the meaning of SQLite's errors.

A connection is used by one thread at a time, and goes back to a stack when its transaction has ended. Threads of this
process take turns at writing (turns.py), because waiting for SQLite's own lock means sleeping and trying again. That is
left for other processes.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.errors import outage, refusal, write_refusal
from jobpool_backends.inotify import wake
from jobpool_backends.shared import contains, micros
from jobpool_backends.sqlite.connections import FileConnections
from jobpool_backends.sqlite.schema import is_current, migrate
from jobpool_backends.sqlite.step import ClockReading, Step, read_clock
from jobpool_backends.sqlite.turns import NoTurn, Turns

PRAGMAS = (
    "synchronous = FULL",  # a commit is on the disk before it is answered
    "secure_delete = FAST",
    "cache_size = -8000",
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 67108864",
)
OLDEST_SQLITE = (3, 35, 0)  # the first that has RETURNING

Result = TypeVar("Result")

_MIN_NAP_S, _MAX_NAP_S = 0.0002, 0.005

_LOCKED = (
    "database {path} was locked by another process, or by a transaction of this program (pass it as connection=), for"
    " {timeout:g} s: look for one that holds a transaction open (fuser {path}), or raise the option timeout"
)
_ALLOW = "allow this user to read and write it and its directory, or mount their file system for writing"
_FORBIDDEN = "database {path} may not be used by this user: allow reading and writing"
_ODD_TEXT = outage("database {path} holds a text that is not UTF-8: look for a row that was changed by hand")
_MEANINGS = {
    sqlite3.SQLITE_BUSY: outage(_LOCKED),
    sqlite3.SQLITE_LOCKED: outage(_LOCKED),
    sqlite3.SQLITE_FULL: write_refusal(
        "the disk or the quota of database {path} is full: free some space; nothing was changed"
    ),
    sqlite3.SQLITE_READONLY: outage("database {path} is read-only: " + _ALLOW),
    sqlite3.SQLITE_PERM: outage(_FORBIDDEN),
    sqlite3.SQLITE_AUTH: outage(_FORBIDDEN),
    sqlite3.SQLITE_CANTOPEN: outage("database {path} cannot be opened: " + _ALLOW),
    sqlite3.SQLITE_NOTADB: outage("{path} is not a SQLite database: name another file"),
    sqlite3.SQLITE_CORRUPT: outage("database {path} is damaged: restore a copy, or try `sqlite3 {path} .recover`"),
    sqlite3.SQLITE_IOERR: outage(
        "the disk of database {path} reports an input/output error: check it and its free space, and whether {path}-wal"
        " or {path}-shm was removed while it was in use"
    ),
    sqlite3.SQLITE_NOMEM: outage("there is no memory left for database {path}"),
    sqlite3.SQLITE_ABORT: outage(
        "a transaction of database {path}, which several threads shared, was undone: try again"
    ),
    sqlite3.SQLITE_PROTOCOL: outage("database {path} is under too many processes at once: try again"),
}
_MISSING = refusal("database {path} has lost a table or a part of one: restore it, or name another file")


class Database(FileConnections):
    """One file, created for this user alone when it is not there; its directory is not.

    `boot` names the boot in which `clock.boot()` counts. A transaction waits `timeout` seconds for its turn. `pragmas`
    run on each new connection. Raises `ConfigurationError` or `BackendUnavailable`; the text says why and what to do.
    """

    def __init__(
        self, path: str, clock: Clock, boot: int, *, timeout: float, pragmas: tuple[str, ...] = PRAGMAS
    ) -> None:
        super().__init__(path, timeout)
        self.clock = clock
        self._boot = boot
        self._pragmas = pragmas
        self._turns = Turns(self)
        self.found_journal = "wal"
        """The journal mode of the file when it was opened; `wal` for a new one."""
        check_place(self.path)
        _create(self.path)
        try:
            self._idle.append(self._connect(self._prepare))
        except sqlite3.Error as error:
            self._raise_explained(error)

    @contextmanager
    def write(self) -> Iterator[Step]:
        """Yield a step of a write transaction: committed to the disk when the block has ended, undone when it raises.

        Wakes the threads of all processes that wait for jobs, if it freed some, or for their ends. Raises
        `BackendUnavailable`: no turn in time, or SQLite failed. Unless a commit failed, nothing was changed.
        """
        self.check_process()  # before the turn: after a fork it may be that of a thread which is not there
        try:
            with self._turns.step(self._timeout) as connection:
                step = Step(connection, self.moment())
                yield step
                step.finish()
        except NoTurn:
            raise BackendUnavailable(_LOCKED.format(path=self.path, timeout=self._timeout)) from None
        except sqlite3.Error as error:
            if _primary_code(error) == sqlite3.SQLITE_FULL:  # the log is written back after a commit, and none succeeds
                with suppress(BackendUnavailable), self.session() as connection:
                    connection.execute("PRAGMA wal_checkpoint")
            self._raise_explained(error)
        if step.frees_jobs:
            wake(self.path)
        if step.ends_jobs:
            wake(self.shared)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield a read transaction: one snapshot, in spite of others' commits. Never waits."""
        with self.session() as connection, self._transaction(connection, "BEGIN"):
            yield connection

    @contextmanager
    def session(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for this thread alone, outside any transaction."""
        try:
            connection = self.lend()
            try:
                yield connection
            finally:
                self.give_back(connection)
        except sqlite3.Error as error:
            self._raise_explained(error)

    def lend(self) -> sqlite3.Connection:
        """Return a connection, in no transaction, which nobody else uses before `give_back`."""
        self.check_usable()
        return self.take() or self._connect()

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a write transaction, as soon as no other process has one."""
        self.retry_locked(_begin, connection, "BEGIN IMMEDIATE")

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Keep a connection for its next use; close it if an interrupt has left it in a transaction."""
        if connection.in_transaction:
            connection.close()
        else:
            super().give_back(connection)

    def moment(self) -> ClockReading:
        return read_clock(self.clock, self._boot)

    def wall(self) -> int:
        return micros(self.clock.wall())

    def _connect(self, prepare: Callable[[sqlite3.Connection], None] | None = None) -> sqlite3.Connection:
        connection = self.open()
        try:
            for pragma in self._pragmas:
                self.retry_locked(connection.execute, f"PRAGMA {pragma}")
            connection.create_function("jobpool_contains", -1, contains, deterministic=True)
            if None in connection.files.values():  # the first, also after a fork: no other has kept the mode
                self.retry_locked(self._switch_to_wal, connection)
            if prepare:
                prepare(connection)
            if None in connection.files.values():
                self.retry_locked(connection.execute, "PRAGMA data_version")  # opens the files beside the database
                self.note_files(connection)
        except BaseException:  # also an interrupt: only this code can close it
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the file a current database, even if another process does the same."""
        if not self.retry_locked(is_current, connection, self.path):
            with self._transaction(connection, "BEGIN IMMEDIATE"):
                migrate(connection, self.path)

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        if os.path.exists(self.path) and os.path.getsize(self.path):
            (self.found_journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigurationError(
                f"database {self.path} cannot use a write-ahead log (its journal mode stays {mode!r}): put it on a"
                " local disk, not on a network file system"
            )

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection, begin: str) -> Iterator[None]:
        self.retry_locked(_begin, connection, begin)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite may have rolled back by itself
                connection.execute("ROLLBACK")
            raise

    def retry_locked(self, step: Callable[..., Result], *args: object) -> Result:
        """Do `step`, again and again while another process holds the lock, within the time limit."""
        give_up = time.monotonic() + self._timeout
        nap = _MIN_NAP_S
        while True:
            try:
                return step(*args)
            except sqlite3.OperationalError as error:
                is_locked = _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not is_locked or time.monotonic() >= give_up:
                    raise
            time.sleep(nap * random.uniform(0.5, 1.5))
            nap = min(nap * 1.5, _MAX_NAP_S)

    def first(self, connection: sqlite3.Connection, sql: str, arguments: Mapping[str, object] | tuple[()] = ()) -> Any:
        """Return the first row of a look outside any transaction."""
        return self.retry_locked(lambda: connection.execute(sql, arguments).fetchone())

    def _raise_explained(self, error: sqlite3.Error) -> NoReturn:
        """Raise what SQLite's error means. One that is not in the table is a fault in jobpool, and stays as it is."""
        code = _primary_code(error)
        is_missing = code == sqlite3.SQLITE_ERROR and str(error).startswith(("no such table", "no such column"))
        is_odd = str(error).startswith("Could not decode")
        meaning = _MISSING if is_missing else _ODD_TEXT if is_odd else _MEANINGS.get(code)
        if meaning is None:
            raise error
        raise meaning.kind(f"{meaning.text.format(path=self.path, timeout=self._timeout)} ({error})") from None


def _primary_code(error: sqlite3.Error) -> int:
    """Return the primary result code, 0 when the error is the Python module's own."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _begin(connection: sqlite3.Connection, begin: str) -> None:
    connection.execute(begin)
    if begin == "BEGIN":  # a plain BEGIN takes no snapshot; the first read does, and it may meet a lock
        try:
            connection.execute("SELECT 1 FROM queues LIMIT 1").fetchone()
        except sqlite3.Error:
            connection.execute("ROLLBACK")
            raise


def check_place(path: str) -> None:
    """Raise `ConfigurationError`: the library is too old, or the path cannot be right."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise ConfigurationError(
            f"this Python is linked with SQLite {sqlite3.sqlite_version}, and sqlite:// needs {wanted} or later:"
            " use a newer Python or system, or another backend"
        )
    place = Path(path)
    if place.is_dir():
        raise ConfigurationError(f"{path} is a directory: name a file in it, such as sqlite:///{place / 'jobpool.db'}")
    folder = Path(os.path.realpath(path)).parent  # of what a link leads to
    if not folder.is_dir():
        raise ConfigurationError(f"the directory {folder} of database {path} does not exist: create it")
    if not place.exists() and not _may_write(folder):
        raise ConfigurationError(
            f"there is no database {path} yet, and this user may not make it: allow writing to its directory,"
            " mount its file system for writing, or correct `backend`"
        )
    wal = f"{os.path.realpath(path)}-wal"
    # SQLite drops the log beside an empty file. The log is looked at first: a new file has a page before its log has.
    if _size(wal) and not _size(path):
        raise ConfigurationError(
            f"database {path} is missing or empty, but {wal} may hold jobs of it: move the file back beside it, or"
            f" remove {wal}"
        )


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _size(path: str) -> int:
    """Return the bytes of a file; 0 where there is none to be seen."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _create(path: str) -> None:
    """Make the file with mode 0600, if it is missing: SQLite would let everybody read it.

    The files that SQLite puts beside it get its mode. A failure here is left for SQLite to explain.
    """
    place = os.path.realpath(path)  # a link that leads nowhere yet is followed, as SQLite does
    with suppress(OSError):
        if hasattr(os, "mknod"):
            # Not opened: closing it would drop the locks that another thread may have on it by then.
            os.mknod(place, 0o600)
    with suppress(OSError):  # where only root may do that
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
