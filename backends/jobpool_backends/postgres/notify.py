"""The bell that wakes sleepers: NOTIFY on a channel of the schema, heard by LISTEN on a connection of its own.

It is heard by one connection a process, on which one thread listens for all that sleep. No thread is there that nobody
asked for; and who sleeps alone, as a pool does, hears without the detour through another thread.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg

from jobpool.errors import JobpoolError
from jobpool_backends.postgres.connection import Connection
from jobpool_backends.postgres.database import Database

LISTEN_RETRY_S = 3.0
"""Seconds before the next try, when the server gives no connection to listen on."""

_RECONNECT_S = 1.0
"""The same, after the one that listened broke."""


def channel(schema: str) -> str:
    """Return the channel on which the messages of this schema are announced; the payload is the queue's name."""
    return f"jobpool:{schema}"


class Sleeper:
    """One thread that waits for some queues, and whether the bell has rung for one of them."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self.woken = False


class Notifications:
    """Wake-ups for the threads of this process.

    Args:
        database: Connects, and says when it has been closed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = threading.Condition(threading.Lock())
        self._sleepers: set[Sleeper] = set()
        self._connection: Connection | None = None
        self._attended = False
        self._listen_next = 0.0

    @contextmanager
    def sleeper(self, queues: Iterable[str]) -> Iterator[Sleeper]:
        """Yield a sleeper that hears every ring from here on."""
        sleeper = Sleeper(queues)
        with self._turn:
            self._sleepers.add(sleeper)
        try:
            yield sleeper
        finally:
            with self._turn:
                self._sleepers.discard(sleeper)

    @property
    def would_connect(self) -> bool:
        """True if nobody listens, and it is time to try."""
        return self._connection is None and not self._database.pooled and time.monotonic() >= self._listen_next

    def listen(self) -> bool:
        """Return whether rings are heard from now on; connects if need be. A look must follow, for what came before."""
        with self._turn:
            if self._connection is not None:
                return True
            if self._attended or not self.would_connect:
                return False
            self._attended = True
        connection = None
        try:
            connection = self._connect()
        finally:
            self._leave(connection)
        return connection is not None

    def wait(self, sleeper: Sleeper, seconds: float) -> bool:
        """Return whether the bell rang for this sleeper within `seconds`."""
        give_up = time.monotonic() + seconds
        while not sleeper.woken and not self._database.closed:
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                break
            connection = self._attend(remaining)
            if connection is not None:
                self._hear(connection, remaining)
        return sleeper.woken

    def close(self) -> None:
        """Wake all sleepers, once the database is closed. The listening thread closes the connection within half a
        second.
        """
        with self._turn:
            if self._connection is not None and not self._attended:
                self._connection.close()
                self._connection = None
            self._turn.notify_all()

    def _connect(self) -> Connection | None:
        """Return a connection that listens; None where there is none to be had, or a pooler would swallow what it
        hears.
        """
        self._listen_next = time.monotonic() + LISTEN_RETRY_S
        try:
            connection = self._database.connect()
        except JobpoolError:
            return None  # a server that is down is for the next look to tell; one that is full still answers looks
        try:
            if not connection.pooled:
                connection.execute(f'LISTEN "{channel(self._database.schema)}"')
                self._listen_next = time.monotonic() + _RECONNECT_S
                return connection
        except psycopg.Error:
            pass
        connection.close()
        return None

    def _attend(self, seconds: float) -> Connection | None:
        """Return the connection, for this thread to listen on; None after another thread has listened, or nobody
        could.
        """
        with self._turn:
            if self._connection is not None and not self._attended:
                self._attended = True
                return self._connection
            self._turn.wait(seconds)
        return None

    def _hear(self, connection: Connection, seconds: float) -> None:
        """Listen, and tell the sleepers what rang. When the connection breaks, they must all look for themselves."""
        names = None
        try:
            names = _listen_on(connection, seconds)
        except psycopg.Error:
            connection.close()
        finally:
            self._leave(connection if names is not None else None, names)

    def _leave(self, connection: Connection | None, names: set[str] | None = None) -> None:
        with self._turn:
            self._attended = False
            self._connection = connection
            for sleeper in self._sleepers:
                sleeper.woken = sleeper.woken or names is None or not names.isdisjoint(sleeper.queues)
            self._turn.notify_all()
        if self._database.closed:
            self.close()


def _listen_on(connection: Connection, seconds: float) -> set[str]:
    """Return the queues that rang."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    if not poll.poll(seconds * 1000):
        return set()
    connection.pgconn.consume_input()
    names = set()
    while notification := connection.pgconn.notifies():
        names.add(notification.extra.decode())
    return names
