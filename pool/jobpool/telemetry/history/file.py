"""History in a file, a JSON object a line (NDJSON): any number of pools append to it, and any of them may tidy it.

A line is one `write` to a descriptor with O_APPEND. When the file has doubled since the last tidying (and 1 MiB is
reached), it is tidied: a new file with the newest `keep` lines of each name takes its place in one step. A lock on the
file (flock) lets one append or tidy at a time: an appender reads the end of the file, and could see half of another's
write. After a wait for the lock, it begins again if the path no longer leads to the locked file. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jobpool.telemetry.history.row import decode

TIDY_FROM = 1024 * 1024
"""Bytes: a smaller file is left alone."""

LARGEST = 256 * 1024 * 1024
"""Bytes that are kept at most, whatever `keep` says: names without end would fill the disk. The oldest go."""

Line = tuple[str, bytes]
"""A name, and a row's line without its end."""


class HistoryFile:
    """A history in a file, as the module describes it. Not for several threads at once.

    Args:
        path: Made when there is something to write, with mode 0600; its directory must be there.
        keep: Lines of one name, >= 1.
        tidy_from: See `TIDY_FROM`.
        largest: See `LARGEST`.
    """

    def __init__(self, path: Path, keep: int, *, tidy_from: int = TIDY_FROM, largest: int = LARGEST) -> None:
        self.path = path
        self._keep = keep
        self._tidy_from = tidy_from
        self._largest = largest
        self._tidy_at = tidy_from

    def append(self, lines: Sequence[Line]) -> None:
        """Add lines, in their order.

        Raises:
            OSError: Not all could be written.

        Blocks while another process tidies, some 10 ms for each MiB of the file.
        """
        with self._locked() as fd:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                os.write(fd, b"\n")  # a writer was killed in the middle of a line
            for _, line in lines:
                _write_line(fd, line)
            size = os.fstat(fd).st_size
        if size >= self._tidy_at:
            self.tidy()

    def tidy(self) -> None:
        """Leave the newest lines of each name. Raises `OSError`."""
        with self._locked() as fd:
            kept = newest(_lines_of(fd), self._keep, self._largest)
            fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
            try:
                _write_all(fresh, kept, stat.S_IMODE(os.fstat(fd).st_mode))
                os.replace(fresh, self.path)
            finally:
                fresh.unlink(missing_ok=True)
        self._tidy_at = max(self._tidy_from, 2 * sum(len(line) + 1 for line in kept))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield the file, open to read and append, locked, and still the one that the path leads to."""
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_at(fd, self.path):
                    yield fd
                    return
            finally:
                os.close(fd)


def read(path: Path, name: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest rows of a name, the newest first. Raises `OSError`; a file that is not there has none."""
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    found.extend(row for row in _rows(path) if row["name"] == name)
    return list(reversed(found))


def names(path: Path) -> list[str]:
    """Return the names that have rows, sorted. Raises `OSError`."""
    return sorted({row["name"] for row in _rows(path)})


def newest(lines: Sequence[bytes], keep: int, largest: int) -> list[bytes]:
    """Return the last `keep` lines of each name, in their order, without broken rows and rows beyond `largest`
    bytes.
    """
    kept: list[bytes] = []
    seen: dict[str, int] = {}
    size = 0
    for line in reversed(lines):
        row = decode(line)
        if row is None or seen.get(row["name"], 0) >= keep:
            continue
        size += len(line) + 1
        if size > largest:
            break
        seen[row["name"]] = seen.get(row["name"], 0) + 1
        kept.append(line)
    kept.reverse()
    return kept


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as stream:
            for line in stream:
                row = decode(line)
                if row is not None:
                    yield row
    except FileNotFoundError:
        return


def _lines_of(fd: int) -> list[bytes]:
    with os.fdopen(os.dup(fd), "rb") as stream:
        stream.seek(0)
        return stream.read().splitlines()


def _write_line(fd: int, line: bytes) -> None:
    """Write once; a full disk may take a part of it only."""
    whole = line + b"\n"
    written = os.write(fd, whole)
    if written < len(whole):
        raise OSError(f"only {written} of {len(whole)} bytes could be written")


def _write_all(path: Path, lines: Sequence[bytes], mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as stream:
        os.fchmod(fd, mode)
        stream.writelines(line + b"\n" for line in lines)
        stream.flush()
        os.fsync(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
