"""Steps of several threads in one write transaction: together or alone, each is whole, and its own to fail."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from support.interrupts import Interrupt, interrupted
from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool_backends.sqlite import SqliteBackend, turns
from jobpool_backends.sqlite.turns import NoTurn, Turns

Body = Callable[[sqlite3.Connection], object]


class Writers:
    """Threads that write to one table. `commits` counts the transactions that were committed to the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reader = sqlite3.connect(path, isolation_level=None)
        self.reader.execute("PRAGMA journal_mode = WAL")
        self.reader.execute("CREATE TABLE rows (name TEXT PRIMARY KEY)")
        self.commits = self.lent = 0
        self.errors: dict[str, BaseException] = {}
        self.turns = Turns(self)
        self.threads: list[threading.Thread] = []

    def _saw(self, sql: str) -> None:
        self.commits += sql == "COMMIT"

    def lend(self) -> sqlite3.Connection:
        self.lent += 1
        connection = sqlite3.connect(self._path, timeout=0.0, isolation_level=None, check_same_thread=False)
        connection.set_trace_callback(self._saw)
        return connection

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def give_back(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def write(self, name: str, body: Body = lambda _: None, timeout: float = 30.0) -> None:
        with self.turns.step(timeout) as connection:
            connection.execute("INSERT INTO rows VALUES (?)", (name,))
            body(connection)

    def start(self, name: str, body: Body = lambda _: None, timeout: float = 30.0, point: int | None = None) -> None:
        """Write in a thread of its own, which waits for its turn behind those that were started before.

        With `point`, it is interrupted there.
        """

        def run() -> None:
            write = partial(self.write, name, body, timeout)
            try:
                if point is None:
                    write()
                elif where := interrupted(write, point):
                    self.errors[name] = Interrupt(where)
            except BaseException as error:  # noqa: BLE001 - an interrupt is one of them
                self.errors[name] = error

        waiting = len(self.turns._waiting)
        thread = threading.Thread(target=run, name=name)
        thread.start()
        wait_until(lambda: len(self.turns._waiting) > waiting or not thread.is_alive())
        self.threads.append(thread)

    def together(self, *bodies: tuple[str, Body]) -> None:
        """Write all of them; each comes while the first one is in the middle of its step."""
        with self.turns.step(1.0) as connection:
            connection.execute("INSERT INTO rows VALUES ('first')")
            for name, body in bodies:
                self.start(name, body)

    def rows(self) -> list[str]:
        """Return what is on the disk, once all threads are done."""
        for thread in self.threads:
            thread.join(30.0)
        assert not any(thread.is_alive() for thread in self.threads)
        return [name for (name,) in self.reader.execute("SELECT name FROM rows ORDER BY rowid")]

    def close(self) -> None:
        self.reader.close()


@pytest.fixture(autouse=True)
def however_slow_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YOUNG_S", 60.0)


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Writers]:
    with closing(Writers(tmp_path / "rows.db")) as writers:
        yield writers


def fine(_: sqlite3.Connection) -> None:
    """Add nothing."""


def fails(_: sqlite3.Connection) -> None:
    raise ValueError("of the step itself")


def repeats(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO rows VALUES ('first')")


def rolls_back(connection: sqlite3.Connection) -> None:
    """Fail as SQLite does when the disk is full: it may undo the whole transaction by itself."""
    connection.execute("ROLLBACK")
    connection.execute("no SQL")


def may_not_commit(connection: sqlite3.Connection) -> None:
    def allows(action: int, what: str | None, *_: object) -> int:
        return sqlite3.SQLITE_DENY if (action, what) == (sqlite3.SQLITE_TRANSACTION, "COMMIT") else sqlite3.SQLITE_OK

    connection.set_authorizer(allows)


def test_a_step_alone_is_a_transaction(writers: Writers) -> None:
    writers.write("a")
    writers.write("b")
    assert (writers.rows(), writers.commits) == (["a", "b"], 2)


def test_threads_that_wait_for_their_turns_share_one_commit_in_their_order_and_are_answered_after_it(
    writers: Writers,
) -> None:
    seen: list[int] = []
    writers.together(*[(f"{number}", lambda _: seen.append(writers.commits)) for number in range(5)])
    assert writers.rows() == ["first", "0", "1", "2", "3", "4"]
    assert (writers.lent, writers.commits, writers.errors) == (1, 1, {})
    assert seen == [0] * 5


def test_an_old_transaction_is_committed_though_others_wait(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YOUNG_S", 0.0)
    writers.together(("a", fine), ("b", fine))
    assert (writers.rows(), writers.lent, writers.commits) == (["first", "a", "b"], 3, 3)


@pytest.mark.parametrize("failing", [fails, repeats])
@pytest.mark.parametrize("after", [["c"], []])
def test_a_step_that_fails_is_undone_alone(writers: Writers, failing: Body, after: list[str]) -> None:
    writers.together(("a", fine), ("bad", failing), *((name, fine) for name in after))
    assert writers.rows() == ["first", "a", *after]
    assert list(writers.errors) == ["bad"]
    assert writers.commits == 1


def test_a_first_step_that_fails_holds_nobody_up(writers: Writers) -> None:
    def fails_while_another_waits(connection: sqlite3.Connection) -> None:
        writers.start("a")
        fails(connection)

    with pytest.raises(ValueError, match="of the step itself"):
        writers.write("first", fails_while_another_waits)
    assert (writers.rows(), writers.errors) == (["a"], {})


def test_a_commit_that_fails_is_an_error_of_all_that_are_in_it(writers: Writers) -> None:
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        writers.together(("a", fine), ("b", may_not_commit), ("bad", fails))
    assert writers.rows() == []
    assert {name: type(error) for name, error in writers.errors.items()} == {
        "a": sqlite3.DatabaseError,
        "b": sqlite3.DatabaseError,
        "bad": ValueError,
    }


def test_what_sqlite_undoes_by_itself_is_an_error_of_all_that_were_in_it(writers: Writers) -> None:
    with pytest.raises(sqlite3.Error):
        writers.together(("a", fine), ("bad", rolls_back), ("c", fine))
    assert writers.rows() == ["c"]
    assert sorted(writers.errors) == ["a", "bad"]


def test_a_transaction_that_cannot_begin_gives_its_turn_on(writers: Writers) -> None:
    writers.reader.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        writers.write("a")
    writers.reader.execute("ROLLBACK")
    writers.write("b", timeout=0.0)
    assert writers.rows() == ["b"]


def test_who_has_waited_for_too_long_leaves_the_queue(writers: Writers) -> None:
    with writers.turns.step(1.0):
        with pytest.raises(NoTurn):
            writers.write("late", timeout=0.01)
        writers.start("patient")
    assert writers.rows() == ["patient"]


def test_a_turn_that_comes_in_the_moment_of_giving_up_is_passed_on(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Turns._leave

    def leave_late(turns: Turns, turn: turns._Turn) -> None:
        if isinstance(turn.failure, NoTurn):
            wait_until(lambda: turn.transaction)
        leave(turns, turn)

    monkeypatch.setattr(Turns, "_leave", leave_late)
    with writers.turns.step(1.0) as connection:
        connection.execute("INSERT INTO rows VALUES ('first')")
        writers.start("late", timeout=0.0)
        writers.start("patient")
    assert (writers.rows(), list(writers.errors), writers.commits) == (["first", "patient"], ["late"], 1)


@pytest.mark.parametrize("victim", ["first", "middle", "last"])
def test_an_interrupt_at_any_point_leaves_each_step_whole_and_the_turn_free(tmp_path: Path, victim: str) -> None:
    """Three steps share a transaction, and the thread of one is interrupted."""
    for point in itertools.count():
        with closing(Writers(tmp_path / f"{point}.db")) as writers:
            write_three(writers, victim, point)
            rows = writers.rows()
            others = {"first", *(thread.name for thread in writers.threads)} - {victim}
            assert set(rows) - {victim} == others
            writers.write("next", timeout=1.0)
            assert writers.rows() == [*rows, "next"]
            if not writers.errors:
                break
    assert point > 10
    assert rows == ["first", "middle", "last"]


def write_three(writers: Writers, victim: str, point: int) -> None:
    points = {victim: point}

    def write() -> None:
        with writers.turns.step(1.0) as connection:
            connection.execute("INSERT INTO rows VALUES ('first')")
            for name in ("middle", "last"):
                writers.start(name, point=points.get(name))

    if victim != "first":
        write()
    elif where := interrupted(write, point):
        writers.errors["first"] = Interrupt(where)


def test_calls_of_a_backend_in_several_threads_are_one_transaction(open_sqlite: Callable[..., SqliteBackend]) -> None:
    backend, commits = open_sqlite(), []
    database = backend._database
    connection = database.take()
    assert connection is not None
    connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    database.give_back(connection)
    threads = [threading.Thread(target=backend.enqueue, args=(a_job(),)) for _ in range(4)]
    with database.write():
        for thread in threads:
            thread.start()
        wait_until(lambda: len(database._turns._waiting) == 4)
    for thread in threads:
        thread.join(30.0)
    assert len(commits) == 1
    assert backend.stats(QUEUE).waiting == 4
