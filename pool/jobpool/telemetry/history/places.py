"""The places of history: a file, or logs in the broker's key store.

The file holds a JSON object a line (NDJSON). Any number of pools append to it, and any of them may tidy it. A line is
one `write` to a descriptor with O_APPEND. A file is tidied when it has doubled since the last time, and has 1 MiB.
Then a new file with the newest `keep` lines of each name takes its place in one step. A lock on the file (flock) lets
one append or tidy at a time, because an appender reads the end of the file.
After a wait for the lock, it begins again if the path no longer leads to the locked file. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from jobpool.broker.key_store import KeyStore
from jobpool.errors import ConfigurationError
from jobpool.message.guards import MOST_LINES
from jobpool.message.setting_types import History
from jobpool.telemetry.history.row import decode, log_name

SPACE = "history"

MIN_TIDY_BYTES = 1024 * 1024  # a smaller file is left alone
MAX_FILE_BYTES = 256 * 1024 * 1024
"""Bytes that are kept at most, whatever `keep` says: names without end would fill the disk. The oldest go."""

FULL = (errno.ENOSPC, errno.EDQUOT)

log = logging.getLogger("jobpool.history")

Line = tuple[str, bytes]  # a name, and a row's line without its end
Row = dict[str, Any]  # never empty
Wants = Callable[[Row], bool]


class HistoryTable:
    """A history in the broker, as logs of its key store. Each method raises `BackendUnavailable`."""

    def __init__(self, keys: KeyStore, keep: int) -> None:
        self._keys = keys
        self._keep = keep

    def append(self, lines: Sequence[Line]) -> None:
        """Keep lines, in their order. After an error the broker may have kept some of them."""
        self._keys.append_log(SPACE, lines, self._keep)

    def read(self, name: str, limit: int, wants: Wants = bool) -> list[Row]:
        """Return the newest rows of a name that are wanted, the newest first.

        Looks further and further back, since rows may be large, and rare ones are far.
        """
        asked = limit
        while True:
            lines = self._keys.read_log(SPACE, log_name(name), limit=asked)
            rows = [*islice((row for line in lines if (row := decode(line)) and wants(row)), limit)]
            if len(rows) == limit or len(lines) < asked or asked == MOST_LINES:
                return rows
            asked = min(10 * asked, MOST_LINES)

    def names(self) -> list[str]:
        """Return the names that have rows, sorted."""
        return self._keys.list_logs(SPACE)


class HistoryFile:
    """A history in a file, as the module describes it: `keep` (>= 1) lines of a name. Not for several threads at once.

    `path` is made when there is something to write, with mode 0600; its directory must be there.
    """

    def __init__(self, path: Path, keep: int, *, tidy_from: int = MIN_TIDY_BYTES) -> None:
        self.path = path
        self._keep = keep
        self._tidy_from = tidy_from
        self._tidy_at = tidy_from

    def append(self, lines: Sequence[Line]) -> None:
        """Add lines, in their order. Raises `OSError`: none was added, so that the caller may try all of them again.

        Where tidying fails, on a disk without room for a second file say, the file grows: that must not cost rows.
        Blocks while another process tidies, some 10 ms for each MiB of the file.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= self._tidy_at:
            try:
                self.tidy()
            except OSError as error:
                self._tidy_at = size + self._tidy_from
                log.warning("history cannot be trimmed; trying again when it has grown", extra={"error": str(error)})
        with self._locked() as fd:
            size = os.fstat(fd).st_size
            try:
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    os.write(fd, b"\n")  # a writer was killed in the middle of a line
                for _, line in lines:
                    _write(fd, line + b"\n")
            except OSError:
                with contextlib.suppress(OSError):  # no other can have written: this one has the lock
                    os.ftruncate(fd, size)
                raise

    def read(self, name: str, limit: int, wants: Wants = bool) -> list[Row]:
        found = deque((row for row in self._rows() if row["name"] == name and wants(row)), maxlen=limit)
        return list(reversed(found))

    def names(self) -> list[str]:
        return sorted({row["name"] for row in self._rows()})

    def _rows(self) -> Iterator[Row]:
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as stream:
            yield from (row for line in stream if (row := decode(line)) is not None)

    def tidy(self) -> None:
        """Leave the newest lines of each name. Raises `OSError`."""
        with self._locked() as fd:
            fresh = self.path.with_name(f"{self.path.name}.new")  # the same for all: one that was killed leaves none
            try:
                with self.path.open("rb") as stream:
                    kept = newest(stream, self._keep, MAX_FILE_BYTES)
                    size = _write_all(fresh, kept, stat.S_IMODE(os.fstat(fd).st_mode))
                os.replace(fresh, self.path)
            except OSError:
                fresh.unlink(missing_ok=True)
                raise
        self._tidy_at = max(self._tidy_from, 2 * size)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield the file, open to read and append, locked, and still the one that the path leads to.

        An `OSError` of the block that means a full disk is raised with the path and the mend.
        """
        import fcntl  # Windows, where history is only read, has none

        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_at(fd, self.path):
                    yield fd
                    return
            except OSError as error:
                if error.errno in FULL:
                    raise OSError(f"no space left at {self.path}: free some") from None
                raise
            finally:
                os.close(fd)


Place = HistoryFile | HistoryTable


def newest(stream: BinaryIO, keep: int, largest: int) -> Iterator[bytes]:
    """Yield the last `keep` lines of each name in their order, at most `largest` bytes, without broken rows.

    Some 16 bytes a line are in memory, and never the lines of a file: a pool may have less memory than its history.
    """
    names: dict[str, int] = {}
    starts, owners = array("Q", [0]), array("L")
    for line in stream:
        row = decode(line)
        owners.append(0 if row is None else names.setdefault(row["name"], len(names) + 1))
        starts.append(starts[-1] + len(line))
    kept, seen = array("Q"), Counter[int]()
    for number in range(len(owners) - 1, -1, -1):
        owner = owners[number]
        if not owner or seen[owner] >= keep:
            continue
        largest -= starts[number + 1] - starts[number]
        if largest < 0:
            break
        seen[owner] += 1
        kept.append(starts[number])
    for start in reversed(kept):
        stream.seek(start)
        yield stream.readline()


def _write(fd: int, line: bytes) -> None:
    """Write the line as a whole; a full disk takes a part of it, and refuses the rest with the cause."""
    while line:
        line = line[os.write(fd, line) :]


def _write_all(path: Path, lines: Iterable[bytes], mode: int) -> int:
    """Write a new file of these lines, and return its size."""
    path.unlink(missing_ok=True)  # one that a killed process left, or a link that another user laid there
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as stream:
        os.fchmod(fd, mode)
        stream.writelines(lines)
        stream.flush()
        os.fsync(fd)
        return os.fstat(fd).st_size


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def check_place(history: History) -> None:
    """Raise `ConfigurationError` unless the file's directory is there: before a pool starts, not at its first row."""
    path = history.path
    if path is not None and not path.parent.is_dir():
        raise ConfigurationError(f"history: there is no directory {path.parent}: make it, or name another file")
    if path is not None and path.is_dir():
        raise ConfigurationError(f"history: {path} is a directory: name a file")
