"""Sleep until a queue may have something, without polling.

A producer wakes waiters after its commit (see `jobpool_backends.inotify`). The write-ahead log is not watched instead.
Its last write comes before the sync that makes the commit visible, so a waiter would look too early. SQLite's own
change counter is looked at as well, for commits of other programs, and for when the kernel has no listener left.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from jobpool.broker.values import LOOK_INTERVAL_S
from jobpool.errors import BackendUnavailable
from jobpool_backends.inotify import Listener
from jobpool_backends.shared import MICRO, IdleConnections
from jobpool_backends.sqlite.connections import gate
from jobpool_backends.sqlite.database import Database

UNNOTIFIED_LOOK_INTERVAL_S = 0.02  # between two looks where there is no listener
_MIN_REST_S, _MAX_REST_S = 0.001, 0.008
"""Rest after wake-ups that brought nothing for us: other queues' traffic must not keep this thread busy."""

_STATE = """
SELECT EXISTS (SELECT 1 FROM messages INDEXED BY messages_ready WHERE queue = :queue AND state = 0),
    (SELECT available_at FROM messages INDEXED BY messages_due
     WHERE queue = :queue AND state = 1 ORDER BY available_at LIMIT 1)
"""


class Listeners(IdleConnections[Listener]):
    """Listeners for `wake` of the file that is their place, kept for the next wait."""

    @contextmanager
    def lend(self) -> Iterator[Listener | None]:
        """Yield a listener for this thread alone; None where there is none."""
        listener = self.take()
        with suppress(OSError):
            listener = listener or Listener(self._place)
        try:
            yield listener
        finally:
            if listener and listener.is_deaf:
                listener.close()
            elif listener:
                self.give_back(listener)


class Waiter:
    """The wait on one database; any number of threads at once. `saw` is called with the queue that has something."""

    def __init__(self, database: Database, saw: Callable[[str], object]) -> None:
        self._database = database
        self._saw = saw
        self._listeners = Listeners(database.path)
        self.close = self._listeners.close  # a listener in use is closed when its user is done
        self._is_first = True

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        give_up = time.monotonic() + timeout
        try:
            while True:
                if self._is_first:  # a wait keeps its connection; others need one, also when no more can be opened
                    with gate, self._database.session(), self._database.session():  # a fork would await the first
                        self._is_first = False
                with self._listeners.lend() as listener, self._database.session() as connection:
                    found = self._wait(connection, listener, queues, give_up)
                if found or self._database.closed or time.monotonic() >= give_up:
                    return found
        except BackendUnavailable:
            if self._database.closed:  # here, just before the session
                return None
            raise

    def _wait(
        self, connection: sqlite3.Connection, listener: Listener | None, queues: Sequence[str], give_up: float
    ) -> str | None:
        seen = due = None
        rest = 0.0
        while not (self._database.closed or self._database.is_forking):
            is_changed = rest > 0  # woken, which comes after a commit: the counter tells nothing more
            if not is_changed:
                # It changes whenever another connection, of any process, has committed.
                (version,) = self._database.first(connection, "PRAGMA data_version")
                is_changed, seen = version != seen, version
            if is_changed or (due is not None and due <= self._database.wall()):
                ready, due = self._look(connection, queues)
                if ready:
                    self._saw(ready)
                    return ready
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                return None
            until = LOOK_INTERVAL_S if due is None else max(0.0, (due - self._database.wall()) / MICRO)
            rest = _sleep(listener, min(remaining, until), rest)
        return None

    def _look(self, connection: sqlite3.Connection, queues: Sequence[str]) -> tuple[str | None, int | None]:
        """Return a queue that has something now, or None and when the next message falls due."""
        now = self._database.wall()
        next_due = None
        for queue in queues:
            ready, due = self._database.first(connection, _STATE, {"queue": queue})
            if ready or (due is not None and due <= now):
                return queue, None
            if due is not None:
                next_due = min(due, next_due or due)
        return None, next_due


def _sleep(listener: Listener | None, seconds: float, rest: float) -> float:
    """Sleep until woken or for `seconds`; return the rest after the next wake-up, if this one brings nothing."""
    if listener is None:
        time.sleep(min(seconds, UNNOTIFIED_LOOK_INTERVAL_S))
        return 0.0
    if not listener.wait(min(seconds, LOOK_INTERVAL_S)):
        return 0.0
    if rest:
        time.sleep(rest)
        listener.clear()
    return min(_MAX_REST_S, rest * 2 or _MIN_REST_S)
