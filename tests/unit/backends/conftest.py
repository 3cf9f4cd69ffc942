"""Fixtures for the tests of single backends: what the contract suite cannot know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobpool_backends.sqlite import SqliteBackend

Open = Callable[..., SqliteBackend]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def open_sqlite(path: Path) -> Iterator[Open]:
    """Opens backends on one file, and closes them."""
    opened: list[SqliteBackend] = []

    def open_one(**options: Any) -> SqliteBackend:
        opened.append(SqliteBackend(str(path), **options))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()
