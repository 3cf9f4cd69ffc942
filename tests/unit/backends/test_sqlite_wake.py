"""The bell: who waits is woken at once by another process, and soon even without a bell."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.jobs import QUEUE, a_job, new_lease

from jobpool.broker.values import LOOK_INTERVAL_S
from jobpool_backends.inotify import Listener, wake
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.wait import Listeners

Open = Callable[..., SqliteBackend]

PRODUCE = """
import sys, time
from jobpool.message.definition import JobDefinition
from jobpool_backends.sqlite import SqliteBackend
backend = SqliteBackend(sys.argv[1])
for _ in sys.stdin:
    backend.enqueue(JobDefinition("report", queue="reports"))
    print(time.monotonic(), flush=True)
"""


def test_a_ring_is_heard(path: Path) -> None:
    path.touch()
    listener = Listener(str(path))
    assert not listener.wait(0.0)
    wake(str(path))
    wake(str(path))
    assert listener.wait(5.0)
    assert not listener.wait(0.0)
    listener.close()
    listener.close()


def test_reading_and_writing_the_file_rings_no_bell(path: Path) -> None:
    path.touch()
    listener = Listener(str(path))
    path.write_text("more")
    path.read_text()
    assert not listener.wait(0.0)
    listener.close()


def test_a_file_that_is_not_there_is_an_error_to_hear_and_none_to_wake(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Listener(str(path))
    wake(str(path))


def test_a_commit_of_another_process_wakes_at_once(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite()
    delays = []
    with (
        ThreadPoolExecutor(1) as executor,
        subprocess.Popen(
            [sys.executable, "-c", PRODUCE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as producer,
    ):
        assert producer.stdin is not None
        assert producer.stdout is not None
        for _ in range(7):
            found = executor.submit(_wait_and_take, backend)
            producer.stdin.write("one\n")
            producer.stdin.flush()
            committed = float(producer.stdout.readline())
            delays.append(found.result(10.0) - committed)
        producer.stdin.close()
    assert sorted(delays)[3] < LOOK_INTERVAL_S / 4


def _wait_and_take(backend: SqliteBackend) -> float:
    """When it woke; the message is leased."""
    assert backend.wait_any([QUEUE], 30.0) == QUEUE
    woken = time.monotonic()
    assert len(backend.fetch_many(QUEUE, limit=5)) == 1
    return woken


def test_a_commit_without_a_bell_is_found_soon(path: Path, open_sqlite: Open) -> None:
    """Another program gives a message back by hand."""
    backend = open_sqlite()
    lease = new_lease(backend)
    backend.abandon(lease, "by mistake")
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(backend.wait_any, [QUEUE], 30.0)
        other = sqlite3.connect(path)
        with other:
            other.execute("UPDATE messages SET state = 0, died_at = NULL")
        other.close()
        assert found.result(10.0) == QUEUE


def test_where_the_kernel_has_no_listener_left_it_looks_at_intervals(
    open_sqlite: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listeners, "lend", lambda _: nullcontext())
    backend, producer = open_sqlite(), open_sqlite()
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(backend.wait_any, [QUEUE], 30.0)
        producer.enqueue(a_job())
        assert found.result(10.0) == QUEUE
    assert backend.wait_any(["nothing"], 0.05) is None
