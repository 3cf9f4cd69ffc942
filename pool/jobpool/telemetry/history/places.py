"""Where history is kept, as `history = …` says it: nowhere, in a file, or in the broker's key store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobpool.broker.key_store import MOST_LINES, KeyStore
from jobpool.errors import ConfigurationError
from jobpool.telemetry.history import file
from jobpool.telemetry.history.file import HistoryFile, Line
from jobpool.telemetry.history.row import decode, log_name

SPACE = "history"

OFF, TABLE, FILE = "off", "table", "file:"


@dataclass(frozen=True, slots=True)
class Where:
    """A parsed setting. `path` is set for a file; `table` for the broker's key store; neither: off."""

    path: Path | None = None
    table: bool = False

    def __bool__(self) -> bool:
        return self.table or self.path is not None


def parse(text: object) -> Where:
    """Parse `off`, `table` or `file:PATH`; a relative path counts from the working directory.

    Raises:
        ValueError: It is none of them.
    """
    word = text.strip() if isinstance(text, str) else ""
    if word.lower() == OFF:
        return Where()
    if word.lower() == TABLE:
        return Where(table=True)
    if word.lower().startswith(FILE) and len(word) > len(FILE):
        return Where(path=Path(word[len(FILE) :]).expanduser().absolute())
    raise ValueError(f"must be 'off', 'table' or 'file:PATH', such as 'file:history.ndjson', not {text!r}")


def setting(text: object) -> str:
    """Return the setting in its full form, a path of a file absolute. Raises `ValueError` as `parse`."""
    where = parse(text)
    return f"{FILE}{where.path}" if where.path is not None else TABLE if where.table else OFF


def check_keep(keep: int) -> int:
    """Return `keep`, or raise `ValueError` naming its bounds."""
    if not 1 <= keep <= MOST_LINES:
        raise ValueError(f"must be 1 to {MOST_LINES}, not {keep}")
    return keep


class Place(ABC):
    """The place of rows."""

    @abstractmethod
    def append(self, lines: Sequence[Line]) -> None:
        """Keep lines. Raises `OSError` or `BackendUnavailable`; some of them may then be kept."""

    @abstractmethod
    def read(self, name: str, limit: int) -> list[dict[str, Any]]:
        """Return the newest rows of a name, the newest first. Raises as `append`."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names that have rows, sorted. Raises as `append`."""


class InFile(Place):
    """A history in a file of its own (file.py)."""

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        self._file = HistoryFile(path, keep)

    def append(self, lines: Sequence[Line]) -> None:
        self._file.append(lines)

    def read(self, name: str, limit: int) -> list[dict[str, Any]]:
        return file.read(self._path, name, limit)

    def names(self) -> list[str]:
        return file.names(self._path)


class InTable(Place):
    """A history in the broker, as logs of its key store."""

    def __init__(self, keys: KeyStore, keep: int) -> None:
        self._keys = keys
        self._keep = keep

    def append(self, lines: Sequence[Line]) -> None:
        self._keys.append_log(SPACE, [(log_name(name), line) for name, line in lines], self._keep)

    def read(self, name: str, limit: int) -> list[dict[str, Any]]:
        lines = self._keys.read_log(SPACE, log_name(name), limit=limit)
        return [row for line in lines if (row := decode(line)) is not None]

    def names(self) -> list[str]:
        return self._keys.list_logs(SPACE)


def check_place(where: Where) -> None:
    """Raise `ConfigurationError` unless the file's directory is there: before a pool starts, not at its first row."""
    if where.path is not None and not where.path.parent.is_dir():
        raise ConfigurationError(f"history: there is no directory {where.path.parent}: make it, or name another file")
    if where.path is not None and where.path.is_dir():
        raise ConfigurationError(f"history: {where.path} is a directory: name a file")
