"""A process that forks while it uses a database: both go on, and no acknowledged job is lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable
from jobpool_backends.sqlite import SqliteBackend, connections
from jobpool_backends.sqlite.connections import FileConnections

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Open = Callable[..., SqliteBackend]

SEND_ONE = """
import sys
from jobpool.message.definition import JobDefinition
from jobpool_backends.sqlite import SqliteBackend
SqliteBackend(sys.argv[1]).enqueue(JobDefinition("report", queue="reports"))
"""


def fork(work: Callable[[], object]) -> int:
    """Return the pid of a process that does `work`, and exits with 0 if that returned."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def status(child: int) -> int:
    return os.waitpid(child, 0)[1]


def enqueue(path: Path, count: int = 1) -> None:
    with closing(SqliteBackend(str(path), timeout=1.0)) as backend:
        for _ in range(count):
            backend.enqueue(a_job())


def test_a_process_forked_amid_transactions_of_other_threads_can_write(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(timeout=30.0)
    stop, sent = threading.Event(), [0, 0]

    def keep_sending(number: int) -> None:
        while not stop.is_set():
            backend.enqueue(a_job())
            sent[number] += 1

    threads = [threading.Thread(target=keep_sending, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        for count in range(5):
            before = sum(sent)
            wait_until(lambda before=before: sum(sent) > before + 1, what="both threads are at it")  # type: ignore[misc]
            assert status(fork(lambda: enqueue(path))) == 0, count
    finally:
        stop.set()
        for thread in threads:
            thread.join(30.0)
    assert backend.stats(QUEUE).waiting == sum(sent) + 5


def test_a_forked_process_loses_nothing_when_its_parent_closes_and_others_come_and_go(
    path: Path, open_sqlite: Open
) -> None:
    backend = open_sqlite()
    backend.enqueue(a_job())
    from_child, to_child = os.pipe(), os.pipe()

    def serve() -> None:
        with closing(SqliteBackend(str(path))) as own:
            own.enqueue(a_job())
            os.write(from_child[1], b".")
            os.read(to_child[0], 1)
            own.enqueue(a_job())

    child = fork(serve)
    os.read(from_child[0], 1)
    backend.close()
    subprocess.run([sys.executable, "-c", SEND_ONE, str(path)], timeout=60, check=True)
    os.write(to_child[1], b".")
    assert status(child) == 0
    for end in (*from_child, *to_child):
        os.close(end)
    assert open_sqlite().stats(QUEUE).waiting == 4


def test_waiters_neither_hold_up_a_fork_nor_miss_what_comes_after_it(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(timeout=30.0)
    ident = backend.enqueue(a_job())
    assert backend._results
    backend._results.wait([ident], 0.0)  # its listener is kept for the next wait
    found: list[str | None] = []
    waiter = threading.Thread(target=lambda: found.append(backend.wait_any(["nothing", "later"], 30.0)))
    waiter.start()
    wait_until(lambda: len(backend._database._open) == 2, what="the waiter has its connection")
    began = time.monotonic()
    assert status(fork(lambda: enqueue(path))) == 0
    assert time.monotonic() - began < 10.0
    backend.enqueue(a_job(queue="later"))
    waiter.join(10.0)
    assert found == ["later"]
    ended = threading.Thread(target=backend._results.wait, args=([ident], 30.0))
    ended.start()
    lease = backend.fetch(QUEUE)
    assert lease is not None
    assert backend.ack(lease)
    ended.join(10.0)
    assert not ended.is_alive()


def test_a_transaction_that_outlasts_the_wait_is_told_of_in_the_forked_process(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(timeout=0.1)

    def refused() -> None:
        with pytest.raises(BackendUnavailable, match="was forked while its parent had a transaction open"):
            enqueue(path)

    with backend._database.write():
        child = fork(refused)
    assert status(child) == 0
    backend.enqueue(a_job())
    assert backend.stats(QUEUE).waiting == 1


@pytest.mark.parametrize("ending", ["", "-wal"])
def test_after_a_fork_a_file_that_goes_missing_is_noticed_still(path: Path, open_sqlite: Open, ending: str) -> None:
    backend = open_sqlite()
    assert status(fork(lambda: None)) == 0
    backend.enqueue(a_job())
    os.unlink(f"{path}{ending}")
    with pytest.raises(BackendUnavailable, match="was removed or replaced"):
        backend.enqueue(a_job())


def test_after_a_fork_a_mode_that_another_program_has_set_is_wal_again(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(timeout=1.0)
    backend.enqueue(a_job())
    assert status(fork(lambda: None)) == 0
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode = DELETE").fetchall() == [("delete",)]
    backend.enqueue(a_job())
    assert backend.stats(QUEUE).waiting == 2
    [told] = [finding.found for finding in backend.diagnose() if finding.check == "sqlite.journal"]
    assert told == "journal_mode was delete until now"


def test_an_interrupt_after_a_fork_keeps_nobody_from_the_file(
    open_sqlite: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler raised there, such as the time limit of a job that forks."""
    backend = open_sqlite()

    def interrupted(_: FileConnections) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(FileConnections, "go_on", interrupted)
    connections._before_fork()
    with pytest.raises(KeyboardInterrupt):
        connections._after_fork()
    other = threading.Thread(target=backend.enqueue, args=[a_job()], daemon=True)
    other.start()
    other.join(10.0)
    assert not other.is_alive()
    assert not backend._database.is_forking


def place_of(thread: threading.Thread) -> str:
    return sys._current_frames()[thread.ident or 0].f_code.co_name


def test_a_fork_amid_the_first_wait_finds_no_connection_open(
    open_sqlite: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait holds one connection while it opens another."""
    backend = open_sqlite(timeout=2.0)
    database, are_open = backend._database, list[bool]()

    def fork_here() -> None:
        connections._before_fork()
        are_open.append(database._has_open())
        connections._after_fork()

    forking = threading.Thread(target=fork_here)

    def open_late() -> connections.Connection:
        monkeypatch.undo()
        forking.start()
        wait_until(lambda: place_of(forking) in ("_before_fork", "leave"), what="the fork waits")
        return database.open()

    monkeypatch.setattr(database, "open", open_late)
    assert backend.fetch(QUEUE, wait=0.5) is None
    forking.join(10.0)
    assert are_open == [False]
