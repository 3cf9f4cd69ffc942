"""Turns of this process's threads at writing, and one commit for the steps of several.

A commit waits for the disk, which takes longer than most steps. So a thread hands its open transaction on if another
waits for its turn, and the last of them commits for all. That is how threads that enqueue share the disk's time, and a
pool's fetch and settlement when they meet.

A signal's handler may raise in any of this, such as Ctrl-C and the time limit of a job that enqueues. So each change of
owner is one assignment, the end of a turn may be called again, and all locks are in C. One gap is left: an interrupt in
`contextlib` suspends a step, which is undone when the exception with its traceback is gone.
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


class Undone(sqlite3.OperationalError):
    """A transaction has been undone with all its steps."""

    sqlite_errorcode = sqlite3.SQLITE_ABORT


_FAILURES = (sqlite3.Error, MemoryError)  # of a statement; sqlite3 has no error of its own for a lack of memory


class Transaction:
    """One write transaction. Only the thread that has the turn uses it; those that have handed it on await its end."""

    def __init__(self, connections: Connections) -> None:
        self.connection = connections.lend()
        self._connections = connections
        self._is_given_back = False
        self._begun = 0.0
        self._has_savepoint = False
        """One stands before the step that runs. Other threads have steps before it."""
        self._wake_locks: list[threading.Lock] = []
        self._is_committing = False
        self._error: sqlite3.Error | None = None

    def begin(self) -> None:
        self._connections.begin(self.connection)
        self._begun = monotonic()

    def begin_next_step(self, wake_lock: threading.Lock) -> bool:
        """Return whether another thread may add a step, and prepare for that. `wake_lock` is released at the end."""
        if not (self.connection.in_transaction and monotonic() < self._begun + YOUNG_S):
            return False
        self._wake_locks.append(wake_lock)
        try:
            if self._has_savepoint:
                self.connection.execute("RELEASE step")
            self._has_savepoint = True
            self.connection.execute("SAVEPOINT step")
        except _FAILURES:
            return False
        return True

    def undo_step(self, error: BaseException) -> None:
        """Undo the running step; others' steps in this transaction too, if SQLite leaves no choice."""
        if self._has_savepoint:
            with suppress(*_FAILURES):
                self.connection.execute("ROLLBACK TO step")
                return
            self._error = error if isinstance(error, sqlite3.Error) else Undone("a step could not be undone alone")
        self._roll_back()

    def end(self) -> None:
        """Commit all steps, or note why that failed. Blocks for the disk. Called again, it goes on where it was."""
        if not self._is_given_back:
            self._commit()
            self._is_given_back = True
            self._connections.give_back(self.connection)
        for wake_lock in self._wake_locks:
            with suppress(RuntimeError):  # it was released before
                wake_lock.release()

    def _commit(self) -> None:
        try:
            if self.connection.in_transaction and not (self._error or self._is_committing):
                self._is_committing = True
                self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._error = error
        except MemoryError:
            self._error = Undone("no memory was left for the commit")
        if self.connection.in_transaction or not self._is_committing:
            self._error = self._error or Undone("it had ended before its commit")
            self._roll_back()

    def await_end(self, wake_lock: threading.Lock) -> None:
        """Block until it has ended. Raises `sqlite3.Error`: it was not committed, and nothing of it is there."""
        if wake_lock in self._wake_locks:
            wake_lock.acquire()
        if self._error is not None:
            raise self._error

    def _roll_back(self) -> None:
        with suppress(*_FAILURES):  # it may have done so by itself
            self.connection.execute("ROLLBACK")


class NoTurn(Exception):
    """The turn has not come in time."""


class _Turn:
    """One thread's turn, which it has or waits for."""

    def __init__(self) -> None:
        self.wake_lock = threading.Lock()
        self.wake_lock.acquire()
        """Locked, but for the moment in which the turn comes, and once what it has handed on has ended."""
        self.transaction: Transaction | None = None
        """The one that it was handed, or the one that it began."""
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
        steps of others take. Raises `NoTurn`, the errors of `Connections`, and `sqlite3.Error`.
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
        turn.transaction.await_end(turn.wake_lock)

    def _await(self, turn: _Turn, timeout: float) -> None:
        with self._lock:
            if self._owner is None:
                self._owner = turn
                return
            self._waiting.append(turn)
        if not turn.wake_lock.acquire(timeout=timeout):
            raise NoTurn

    def _leave(self, turn: _Turn) -> None:
        """Undo the step if it has failed, and give the turn on; or wait for it no longer.

        Called again, it does what an interrupt has left: nothing, if another has the turn.
        """
        with self._lock:
            if self._owner is not turn:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                return
        transaction = turn.transaction
        if transaction:
            if turn.failure:
                transaction.undo_step(turn.failure)
                turn.failure = None  # so that it is not undone again, after the end
            if self._waiting and transaction.begin_next_step(turn.wake_lock) and self._pass_on(transaction):
                return
            transaction.end()
        self._pass_on(None)

    def _pass_on(self, transaction: Transaction | None) -> bool:
        """Give the turn to the thread that has waited for longest, if one does. If none does, a transaction stays."""
        with self._lock:
            if self._waiting:
                successor = self._waiting[0]
                successor.transaction = transaction
                self._owner = successor
                del self._waiting[0]
                successor.wake_lock.release()
                return True
            if transaction is None:
                self._owner = None
            return False
