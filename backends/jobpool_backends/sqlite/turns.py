"""Turns of this process's threads at writing, and one commit for the steps of several.

A commit waits for the disk, which takes longer than most steps. So a thread hands its open transaction on if another
waits for its turn, and the last of them commits for all. That is how threads that enqueue share the disk's time, and a
pool's fetch and settlement when they meet.

A signal's handler may raise in any of this, such as Ctrl-C and the time limit of a job that enqueues. So each change of
owner is one assignment, and what ends a turn may be called again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Protocol

YOUNG_S = 0.005
"""Seconds after its begin for which a transaction may be handed on. Other processes wait for it, and threads that have
a step in it."""


class Connections(Protocol):
    """Lender of connections."""

    def lend(self) -> sqlite3.Connection:
        """Return a connection, in no transaction, which nobody else uses before `give_back`."""

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a write transaction. May block for other processes, and raise."""

    def give_back(self, connection: sqlite3.Connection) -> None: ...


class Transaction:
    """One write transaction. Only the thread that has the turn uses it, but for `await_end`."""

    def __init__(self, connections: Connections) -> None:
        self.connection = connections.lend()
        self._connections = connections
        self._is_given_back = False
        self._begun = 0.0
        self._is_shared = False
        """Other threads have steps in it, before the one that runs."""
        self._ended: threading.Event | None = None
        self._error: sqlite3.Error | None = None

    def begin(self) -> None:
        self._connections.begin(self.connection)
        self._begun = monotonic()

    def begin_next_step(self) -> bool:
        """Return whether another thread may add a step, and prepare for that."""
        if not (self.connection.in_transaction and monotonic() < self._begun + YOUNG_S):
            return False
        self._ended = self._ended or threading.Event()
        try:
            if self._is_shared:
                self.connection.execute("RELEASE step")
            self._is_shared = True
            self.connection.execute("SAVEPOINT step")
        except sqlite3.Error:
            return False
        return True

    def undo_step(self, error: BaseException) -> None:
        """Undo what the running step has done; what others have done too, if SQLite leaves no choice."""
        if self._is_shared:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK TO step")
                return
            self._error = error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError("undone by SQLite")
        self._roll_back()

    def end(self) -> None:
        """Commit all steps, or note why that failed. Blocks for the disk. Called again, it goes on where it was."""
        if not self._is_given_back:
            self._commit()
            self._is_given_back = True
            self._connections.give_back(self.connection)
        if self._ended is not None:
            self._ended.set()

    def _commit(self) -> None:
        try:
            if self.connection.in_transaction and self._error is None:
                self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._error = error
        if self.connection.in_transaction:
            self._roll_back()

    def await_end(self) -> None:
        """Block until it has ended. Raises `sqlite3.Error`: it was not committed, and nothing of it is there."""
        if self._ended is not None:
            self._ended.wait()
        if self._error is not None:
            raise self._error

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # it may have done so by itself
            self.connection.execute("ROLLBACK")


class NoTurn(Exception):
    """The turn has not come in time."""


class _Turn:
    """One thread's turn, which it has or waits for."""

    def __init__(self) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()
        self.transaction: Transaction | None = None
        """The transaction that the thread before has handed on, or else its own."""
        self.failure: BaseException | None = None


class Turns:
    """A queue of threads, one of which has its turn."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._owner: _Turn | None = None
        self._waiting: deque[_Turn] = deque()

    @contextmanager
    def step(self, timeout: float) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a write transaction: committed when the block has ended, undone when it raises.

        Blocks for `timeout` seconds at most for the turn, and then as long as `Connections.begin` and the
        steps of others take. Raises `NoTurn`, what `Connections` raises, and `sqlite3.Error`.
        """
        turn = _Turn()
        try:
            self._await(turn, timeout)
            if turn.transaction is None:
                turn.transaction = Transaction(self._connections)
                turn.transaction.begin()
            yield turn.transaction.connection
        except BaseException as error:
            turn.failure = error
            raise
        finally:
            try:
                self._leave(turn)
            finally:
                self._leave(turn)  # again, in case that was interrupted
                turn.failure = None  # its traceback leads back to the turn, and to the connection
        turn.transaction.await_end()

    def _await(self, turn: _Turn, timeout: float) -> None:
        with self._lock:
            if self._owner is None:
                self._owner = turn
                return
            self._waiting.append(turn)
        if not turn.bell.acquire(timeout=timeout):
            raise NoTurn

    def _leave(self, turn: _Turn) -> None:
        """Undo the step if it has failed, and give the turn on; or wait for it no longer. Called again, do the rest."""
        with self._lock:
            if self._owner is not turn:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                return
        transaction = turn.transaction
        if transaction:
            if turn.failure:
                transaction.undo_step(turn.failure)
            if self._waiting and transaction.begin_next_step() and self._pass_on(transaction):
                return
            transaction.end()
        self._pass_on(None)

    def _pass_on(self, transaction: Transaction | None) -> bool:
        """Give the turn to the thread that has waited for longest, if one does. An open transaction stays else."""
        with self._lock:
            if self._waiting:
                heir = self._waiting[0]
                heir.transaction = transaction
                self._owner = heir
                del self._waiting[0]
                heir.bell.release()
                return True
            if transaction is None:
                self._owner = None
            return False
