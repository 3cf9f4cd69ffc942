"""Bodies that somebody has changed in the file by hand: what is none is fetched as an empty one, and refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.jobs import QUEUE, a_job

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.errors import MalformedEnvelope


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def backend(path: Path) -> Iterator[QueueBackend]:
    with closing(open_backend(f"sqlite:///{path}")) as backend:
        yield backend


@pytest.mark.parametrize(
    "change",
    ["UPDATE bodies SET body = '{}'", "UPDATE bodies SET body = 7", "DELETE FROM bodies"],
    ids=["text", "number", "gone"],
)
def test_what_is_no_blob_is_refused(backend: QueueBackend, path: Path, change: str) -> None:
    """It would end the pool that fetches it: no text is decoded, and no number has a length."""
    backend.enqueue(a_job())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert lease.body == b""
    with pytest.raises(MalformedEnvelope):
        _ = lease.envelope
