"""The meaning of SQLite's errors to the caller: one table from result code to sentence."""

from __future__ import annotations

import sqlite3
from typing import NoReturn

from jobpool_backends.errors import mend, take_no_writes, wait

LOCKED = (
    "database {path} was locked by another process for {timeout:g} s: look for one that holds a transaction open"
    " (fuser {path}), or raise the option timeout"
)

_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

_MEANINGS = {
    sqlite3.SQLITE_BUSY: wait(LOCKED),
    sqlite3.SQLITE_LOCKED: wait(LOCKED),
    sqlite3.SQLITE_FULL: take_no_writes(
        "the disk or the quota of database {path} is full: free some space; nothing was changed"
    ),
    sqlite3.SQLITE_READONLY: wait(
        "database {path} is read-only for this user: allow writing to the file and its directory"
    ),
    sqlite3.SQLITE_PERM: wait("database {path} may not be used by this user: allow reading and writing"),
    sqlite3.SQLITE_AUTH: wait("database {path} may not be used by this user: allow reading and writing"),
    sqlite3.SQLITE_CANTOPEN: wait(
        "database {path} cannot be opened: allow this user to read and write it and its directory"
    ),
    sqlite3.SQLITE_NOTADB: wait("{path} is not a SQLite database: name another file"),
    sqlite3.SQLITE_CORRUPT: wait("database {path} is damaged: restore a copy, or try `sqlite3 {path} .recover`"),
    sqlite3.SQLITE_IOERR: wait(
        "the disk of database {path} reports an input/output error: check it and its free space"
    ),
    sqlite3.SQLITE_NOMEM: wait("there is no memory left for database {path}"),
    sqlite3.SQLITE_PROTOCOL: wait("database {path} is under too many processes at once: try again"),
}

_MISSING = mend("database {path} has lost a table or a part of one: restore it, or name another file")


def primary_code(error: sqlite3.Error) -> int:
    """Return the primary result code, 0 when the error is the Python module's own."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether trying again in a moment may help."""
    return primary_code(error) in _BUSY_CODES


def raise_explained(error: sqlite3.Error, path: str, timeout: float) -> NoReturn:
    """Raise what SQLite's error means. One that is not in the table is a fault in jobpool, and stays as it is."""
    code = primary_code(error)
    is_missing = code == sqlite3.SQLITE_ERROR and str(error).startswith(("no such table", "no such column"))
    meaning = _MISSING if is_missing else _MEANINGS.get(code)
    if meaning is None:
        raise error
    raise meaning.kind(f"{meaning.text.format(path=path, timeout=timeout)} ({error})") from error
