"""Turns of this process's threads at writing, and one commit for the steps of several.

A commit waits for the disk, which takes longer than most steps. So a thread hands its open transaction on if another
waits for its turn, and the last of them commits for all. That is how threads that enqueue share the disk's time, and a
pool's fetch and settlement when they meet.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

YOUNG_S = 0.005
"""Seconds after its begin for which a transaction may be handed on. Other processes wait for it, and threads that have
a step in it."""


class Transaction:
    """One write transaction, begun. Only the thread that has the turn uses it, but for `await_end`."""

    def __init__(self, connection: sqlite3.Connection, give_back: Callable[[sqlite3.Connection], None]) -> None:
        self.connection = connection
        self._give_back = give_back
        self._begun = monotonic()
        self._joined = False
        """Other threads have steps in it, before the one that runs."""
        self._ended: threading.Event | None = None
        self._error: sqlite3.Error | None = None

    def may_go_on(self) -> bool:
        """Return whether it may be handed on, and prepare for that."""
        may = self.connection.in_transaction and monotonic() < self._begun + YOUNG_S
        if may and self._ended is None:
            self._ended = threading.Event()
        return may

    def join(self) -> None:
        self._joined = True
        self.connection.execute("SAVEPOINT step")

    def end_step(self) -> None:
        if self._joined:
            self.connection.execute("RELEASE step")

    def undo_step(self, error: BaseException) -> None:
        """Undo what the running step has done; what others have done too, if SQLite leaves no choice."""
        if self._joined:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK TO step")
                return
            self._error = error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError("undone by SQLite")
        self._roll_back()

    def commit(self) -> None:
        """Commit all steps, or note why that failed. Blocks for the disk."""
        try:
            if self.connection.in_transaction:
                self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._error = error
        finally:
            if self.connection.in_transaction:
                self._error = self._error or sqlite3.OperationalError("the commit was interrupted")
                self._roll_back()
            self._give_back(self.connection)
            if self._ended is not None:
                self._ended.set()

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


class _Waiter:
    def __init__(self) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()
        self.handed: Transaction | None = None


class Turns:
    """A queue of threads, one of which has its turn. `begin` begins a transaction, or raises."""

    def __init__(self, begin: Callable[[], Transaction]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[_Waiter] = deque()

    @contextmanager
    def step(self, timeout: float) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a write transaction: committed when the block has ended, undone when it raises.

        Blocks for `timeout` seconds at most for the turn, and then as long as `begin` and the steps of others take.
        Raises `NoTurn`, what `begin` raises, and `sqlite3.Error`.
        """
        handed = self._take(timeout)
        try:
            transaction = handed or self._begin()
        except BaseException:  # also an interrupt: others wait for the turn
            self._pass_on(None)
            raise
        try:
            if handed:
                transaction.join()
            yield transaction.connection
            transaction.end_step()
        except BaseException as error:
            transaction.undo_step(error)
            self._end(transaction)
            raise
        self._end(transaction)

    def _take(self, timeout: float) -> Transaction | None:
        """Wait for the turn; return the open transaction that comes with it, if one does."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return None
            waiter = _Waiter()
            self._waiting.append(waiter)
        try:
            came = waiter.bell.acquire(timeout=timeout)
        except BaseException:  # an interrupt, whose turn may have come already: others wait for it, or for the commit
            if not self._leave(waiter):
                self._close(waiter.handed)
            raise
        if not came and self._leave(waiter):
            raise NoTurn
        return waiter.handed

    def _leave(self, waiter: _Waiter) -> bool:
        """Wait no longer; return False if the turn has come meanwhile."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(waiter)
            return True
        return False

    def _end(self, transaction: Transaction) -> None:
        if not (self._waiting and transaction.may_go_on() and self._pass_on(transaction)):
            self._close(transaction)
        transaction.await_end()

    def _close(self, transaction: Transaction | None) -> None:
        try:
            if transaction is not None:
                transaction.commit()
        finally:
            self._pass_on(None)

    def _pass_on(self, transaction: Transaction | None) -> bool:
        """Give the turn to the thread that has waited for longest, if one does. An open transaction stays else."""
        with self._lock:
            if self._waiting:
                waiter = self._waiting.popleft()
                waiter.handed = transaction
                waiter.bell.release()
                return True
            if transaction is None:
                self._taken = False
            return False
