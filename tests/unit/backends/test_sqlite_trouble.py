"""What goes wrong with a file: each a clear sentence, and nothing lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.descriptors import no_more_descriptors
from support.jobs import QUEUE, a_job, numbered
from support.waiting import wait_until

from jobpool.broker.values import MessageFilter, Verb
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.sqlite import SqliteBackend, database
from jobpool_backends.sqlite.database import PRAGMAS
from jobpool_backends.sqlite.schema import is_current

Open = Callable[..., SqliteBackend]

LEFT_OPEN = """
import gc, sys
from jobpool.message.definition import JobDefinition
from jobpool_backends.sqlite import SqliteBackend
SqliteBackend(sys.argv[1]).enqueue(JobDefinition("report"))
gc.collect()
"""


def test_what_a_program_has_left_open_is_closed_without_a_warning(path: Path) -> None:
    command = [sys.executable, "-X", "dev", "-c", LEFT_OPEN, str(path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr == ""


# --- somebody else holds the lock --------------------------------------------------------------------------


@pytest.fixture
def holder(path: Path, open_sqlite: Open) -> Iterator[sqlite3.Connection]:
    """Another program in the middle of a write transaction."""
    open_sqlite()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


def test_a_locked_database_is_waited_for_and_then_named(
    path: Path, open_sqlite: Open, holder: sqlite3.Connection
) -> None:
    backend = open_sqlite(timeout=0.1)
    told = rf"{path} was locked by another process, or by .* \(pass it as connection=\), for 0.1 s: .*timeout"
    with pytest.raises(BackendUnavailable, match=told):
        backend.enqueue(a_job())
    holder.execute("ROLLBACK")
    backend.enqueue(a_job())
    assert backend.stats(QUEUE).waiting == 1


def test_reading_does_not_wait_for_the_lock(open_sqlite: Open, holder: sqlite3.Connection) -> None:
    del holder
    backend = open_sqlite(timeout=0.1)
    assert backend.stats(QUEUE).pending == 0
    assert backend.list_messages() == []
    assert backend.fetch(QUEUE) is None
    assert backend.reap(QUEUE) == []


def test_a_lock_that_is_released_in_time_is_no_trouble(open_sqlite: Open, holder: sqlite3.Connection) -> None:
    backend = open_sqlite(timeout=30.0)
    thread = threading.Thread(target=backend.enqueue, args=(a_job(),))
    thread.start()
    wait_until(lambda: backend._database._turns._owner, what="the writer has begun")
    holder.execute("ROLLBACK")
    thread.join(10.0)
    assert backend.stats(QUEUE).waiting == 1


def test_a_lock_held_by_a_thread_of_this_process_is_waited_for_too(open_sqlite: Open) -> None:
    backend = open_sqlite(timeout=0.1)
    with backend._database.write(), pytest.raises(BackendUnavailable, match="locked"):
        backend.enqueue(a_job())
    backend.enqueue(a_job())


# --- the disk ---------------------------------------------------------------------------------------------


def test_a_full_disk_is_named_and_nothing_is_lost(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(pragmas=(*PRAGMAS, "max_page_count = 60"))
    known: list[str] = []

    def fill() -> None:
        while True:
            known.extend(backend.enqueue_many([a_job("x" * 500), a_job("y" * 500)]))

    with pytest.raises(BackendUnavailable, match=rf"disk .* {path} is full: free some space; nothing was changed"):
        fill()
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:  # without the log
        [(count,)] = connection.execute("SELECT count(*) FROM messages")
        assert count == len(known), "the log was written back, so that it has room for what comes next"
    assert [message.id for message in backend.list_messages(limit=1000)] == known
    assert backend.stats(QUEUE).waiting == len(known)
    assert backend.bulk(MessageFilter(ids=tuple(known[:20])), Verb.DELETE) == 20
    backend.enqueue(a_job("z" * 500))


TRY_TO_ENQUEUE = """
import os, sys
from jobpool.message.definition import JobDefinition
from jobpool_backends.sqlite import SqliteBackend
if os.geteuid() == 0:  # root may write anything
    os.setgroups([])
    os.setuid(65534)
try:
    SqliteBackend(sys.argv[1]).enqueue(JobDefinition("report"))
except Exception as error:
    print(type(error).__name__, error)
"""


def try_to_enqueue(path: Path) -> str:
    """What a user who may do little is told."""
    command = [sys.executable, "-c", TRY_TO_ENQUEUE, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder of our own that others may enter."""
    with tempfile.TemporaryDirectory(prefix="jobpool-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        Path(folder).chmod(0o755)


def test_a_file_or_folder_that_may_not_be_written_is_named(public: Path) -> None:
    path = public / "jobs.db"
    public.chmod(0o555)
    told = try_to_enqueue(path)
    assert told.startswith(f"ConfigurationError there is no database {path} yet, and this user may not make it: allow")
    public.chmod(0o755)
    SqliteBackend(str(path)).close()
    path.chmod(0o444)
    public.chmod(0o555)
    told = try_to_enqueue(path)
    assert told.startswith(f"BackendUnavailable database {path} ")
    assert "allow" in told


def test_an_error_of_the_disk_may_be_a_file_that_was_removed(path: Path, open_sqlite: Open) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMMAP
    with pytest.raises(BackendUnavailable, match=f"whether {path}-wal or {path}-shm was removed"):
        open_sqlite()._database._raise_explained(error)


# --- the file ---------------------------------------------------------------------------------------------


def test_a_file_of_another_kind_is_named_and_left_alone(path: Path, open_sqlite: Open) -> None:
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(BackendUnavailable, match=f"{path} is not a SQLite database: name another file"):
        open_sqlite()
    assert path.read_bytes().startswith(b"Dear diary")


@pytest.mark.parametrize("emptied", [False, True], ids=["missing", "emptied"])
def test_a_log_whose_database_is_missing_is_kept(path: Path, open_sqlite: Open, emptied: bool) -> None:
    """SQLite would drop it beside a new file, with the jobs of a program that was killed."""
    killed = open_sqlite()
    killed.enqueue(a_job())
    away, wal = path.with_suffix(".away"), path.with_name(f"{path.name}-wal")
    path.rename(away)
    if emptied:
        path.touch()
    for attempt in (open_sqlite, lambda: SqliteBackend.missing(f"sqlite:///{path}")):
        with pytest.raises(ConfigurationError, match=rf"{wal} may hold jobs of it: move .* back .*, or remove {wal}"):
            attempt()
    assert wal.stat().st_size
    away.rename(path)
    assert open_sqlite().stats(QUEUE).waiting == 1


def test_a_database_that_somebody_else_makes_between_the_two_looks_is_ours(
    open_sqlite: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(name: str) -> int:
        size = os.path.getsize(name) if os.path.exists(name) else 0
        monkeypatch.undo()
        open_sqlite().enqueue(a_job())
        return size

    monkeypatch.setattr(database, "_size", looked)
    open_sqlite().enqueue(a_job())
    assert open_sqlite().stats(QUEUE).waiting == 2


def test_a_damaged_file_is_named(path: Path, open_sqlite: Open) -> None:
    backend = SqliteBackend(str(path))
    backend.enqueue_many(numbered(2000))
    backend.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (size - 8192))
    with pytest.raises(BackendUnavailable, match=f"{path} is damaged: restore a copy"):
        open_sqlite().list_messages(limit=1000)


def test_a_database_of_another_program_or_of_a_newer_jobpool_is_refused(path: Path, open_sqlite: Open) -> None:
    for statement, told in [
        ("CREATE TABLE messages (text)", "holds tables of another program: give jobpool a file of its own"),
        ("PRAGMA user_version = 99", r"schema version 99, .* install the newer jobpool"),
    ]:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
        with pytest.raises(ConfigurationError, match=told):
            open_sqlite()


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_file_that_was_taken_away_is_noticed(path: Path, open_sqlite: Open, replaced: bool) -> None:
    """Writing to a file that nobody can find any more would lose what was enqueued."""
    backend = open_sqlite()
    path.rename(path.with_suffix(".old"))
    if replaced:
        path.touch()
    with pytest.raises(BackendUnavailable, match=r"removed or replaced while it was in use.*Stop all that use"):
        backend.enqueue(a_job())


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_file_beside_it_that_was_taken_away_is_noticed(path: Path, open_sqlite: Open, suffix: str) -> None:
    """A program that opens the database then writes another one: neither sees what the other does."""
    backend = open_sqlite()
    backend.enqueue(a_job())
    beside = path.with_name(path.name + suffix)
    beside.unlink()
    for call in (lambda: backend.fetch(QUEUE), lambda: backend.stats(QUEUE), lambda: backend.wait_any([QUEUE], 0.1)):
        with pytest.raises(BackendUnavailable, match=f"{suffix} was removed or replaced while it was in use"):
            call()
    beside.touch()
    with pytest.raises(BackendUnavailable, match="was removed or replaced"):
        backend.enqueue(a_job())


def test_the_files_beside_it_go_with_a_last_connection_that_an_interrupt_has_spoilt(open_sqlite: Open) -> None:
    backend = open_sqlite()
    backend.enqueue(a_job("first"))
    connection = backend._database.lend()
    connection.execute("BEGIN")
    backend._database.give_back(connection)
    backend.enqueue(a_job("second"))
    assert backend.stats(QUEUE).waiting == 2


def test_the_files_beside_it_stay_while_other_programs_come_and_go(open_sqlite: Open) -> None:
    backend = open_sqlite()
    for _ in range(3):
        other = open_sqlite()
        other.enqueue(a_job())
        other.close()
        [lease] = backend.fetch_many(QUEUE, limit=1)
        assert backend.ack(lease)


# --- closing ----------------------------------------------------------------------------------------------


def test_no_file_stays_open(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite()
    producers = [threading.Thread(target=backend.enqueue, args=(a_job(),)) for _ in range(8)]
    waiters = [threading.Thread(target=backend.wait_any, args=(["nothing"], 30.0)) for _ in range(3)]
    before = inotify_count()
    for thread in producers + waiters:
        thread.start()
    wait_until(lambda: inotify_count() >= before + 3, what="the waiters listen")
    for thread in producers:
        thread.join(10.0)
    backend.close()
    for thread in waiters:
        thread.join(10.0)
    assert not any(thread.is_alive() for thread in producers + waiters)
    assert not [target for target in open_files() if target.startswith(str(path))]
    assert inotify_count() == before


def open_files() -> list[str]:
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the listing's own
            continue
    return targets


def inotify_count() -> int:
    return sum("inotify" in target for target in open_files())


# --- processes that die -----------------------------------------------------------------------------------


DIE_IN_A_TRANSACTION = """
import sys, os, signal
from jobpool_backends.sqlite import SqliteBackend
backend = SqliteBackend(sys.argv[1])
with backend._database.write() as step:
    step.connection.execute("DELETE FROM messages")
    step.connection.execute("UPDATE queues SET waiting = 0")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_in_a_transaction_changes_nothing_and_blocks_nobody(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite(timeout=5.0)
    backend.enqueue_many(numbered(50))
    killed = subprocess.run([sys.executable, "-c", DIE_IN_A_TRANSACTION, str(path)], timeout=60, check=False)
    assert killed.returncode == -9
    backend.enqueue(a_job())
    assert backend.stats(QUEUE).waiting == 51
    assert len(backend.fetch_many(QUEUE, limit=100)) == 51


ENQUEUE_FOR_EVER = """
import sys
from jobpool.message.definition import JobDefinition
from jobpool_backends.sqlite import SqliteBackend
backend = SqliteBackend(sys.argv[1])
while True:
    print(backend.enqueue(JobDefinition("report", queue="reports")), flush=True)
"""


def test_what_was_answered_is_there_after_a_kill(path: Path, open_sqlite: Open) -> None:
    answered: list[str] = []
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", ENQUEUE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True
        ) as producer:
            assert producer.stdout is not None
            answered += [producer.stdout.readline().strip() for _ in range(20)]
            producer.kill()
            answered += [line.strip() for line in producer.stdout if line.endswith("\n")]
    backend = open_sqlite()
    present = {message.id for message in backend.list_messages(limit=1000)}
    assert set(answered) <= present
    assert len(present) <= len(answered) + 5
    assert backend.stats(QUEUE).waiting == len(present)
    with backend._database.read() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_somebody_else_prepares_between_two_looks_is_ours(tmp_path: Path) -> None:
    path = str(tmp_path / "jobpool.db")

    class Interrupted(sqlite3.Connection):
        """Another process makes the tables right before the second statement."""

        statements = 0

        def execute(self, *words: Any) -> sqlite3.Cursor:
            self.statements += 1
            if self.statements == 2:
                SqliteBackend(path).close()
            return super().execute(*words)

    with closing(sqlite3.connect(path, factory=Interrupted)) as connection:
        assert is_current(connection, path)


def test_who_waits_leaves_a_connection_for_others_when_no_more_can_be_opened(open_sqlite: Open) -> None:
    backend = open_sqlite()
    assert backend.wait_any([QUEUE], 0.0) is None
    with no_more_descriptors(), backend._database.session():  # as a wait keeps one
        backend.enqueue(a_job())
    assert backend.stats(QUEUE).waiting == 1
