"""Where history is kept: in a file, or in the broker's key store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jobpool.broker.key_store import KeyStore
from jobpool.errors import ConfigurationError
from jobpool.message.setting_types import History
from jobpool.telemetry.history import file
from jobpool.telemetry.history.file import HistoryFile, Line
from jobpool.telemetry.history.row import decode, log_name

SPACE = "history"


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


class InFile(HistoryFile, Place):
    """A history in a file of its own (file.py)."""

    def read(self, name: str, limit: int) -> list[dict[str, Any]]:
        return file.read(self.path, name, limit)

    def names(self) -> list[str]:
        return file.names(self.path)


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


def check_place(history: History) -> None:
    """Raise `ConfigurationError` unless the file's directory is there: before a pool starts, not at its first row."""
    path = history.path
    if path is not None and not path.parent.is_dir():
        raise ConfigurationError(f"history: there is no directory {path.parent}: make it, or name another file")
    if path is not None and path.is_dir():
        raise ConfigurationError(f"history: {path} is a directory: name a file")
