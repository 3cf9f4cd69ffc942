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
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.link import Link

LISTEN_AGAIN = 3.0
"""Seconds before the next try, when the server gives no connection to listen on."""

_RECONNECT = 1.0
"""The same, after the one that listened broke."""


def channel(schema: str) -> str:
    """Return the channel on which the messages of this schema are announced; the payload is the queue's name."""
    return f"jobpool:{schema}"


class Sleeper:
    """One thread that waits for some queues, and whether the bell has rung for one of them."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self.rung = False


class Bell:
    """Wake-ups for the threads of this process.

    Args:
        database: Connects, and says when it has been closed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = threading.Condition(threading.Lock())
        self._sleepers: set[Sleeper] = set()
        self._link: Link | None = None
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
        return self._link is None and not self._database.pooled and time.monotonic() >= self._listen_next

    def listen(self) -> bool:
        """Return whether rings are heard from now on; connects if need be. A look must follow, for what came before."""
        with self._turn:
            if self._link is not None:
                return True
            if self._attended or not self.would_connect:
                return False
            self._attended = True
        link = None
        try:
            link = self._connect()
        finally:
            self._leave(link)
        return link is not None

    def wait(self, sleeper: Sleeper, seconds: float) -> bool:
        """Return whether the bell rang for this sleeper within `seconds`."""
        give_up = time.monotonic() + seconds
        while not sleeper.rung and not self._database.closed:
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                break
            link = self._attend(remaining)
            if link is not None:
                self._hear(link, remaining)
        return sleeper.rung

    def close(self) -> None:
        """Wake all sleepers, once the database is closed. The listening thread closes the connection within half a
        second.
        """
        with self._turn:
            if self._link is not None and not self._attended:
                self._link.close()
                self._link = None
            self._turn.notify_all()

    def _connect(self) -> Link | None:
        """Return a connection that listens; None where there is none to be had, or a pooler would swallow what it
        hears.
        """
        self._listen_next = time.monotonic() + LISTEN_AGAIN
        try:
            link = self._database.connect()
        except JobpoolError:
            return None  # a server that is down is for the next look to tell; one that is full still answers looks
        try:
            if not link.pooled:
                link.execute(f'LISTEN "{channel(self._database.schema)}"')
                self._listen_next = time.monotonic() + _RECONNECT
                return link
        except psycopg.Error:
            pass
        link.close()
        return None

    def _attend(self, seconds: float) -> Link | None:
        """Return the connection, for this thread to listen on; None after another thread has listened, or nobody
        could.
        """
        with self._turn:
            if self._link is not None and not self._attended:
                self._attended = True
                return self._link
            self._turn.wait(seconds)
        return None

    def _hear(self, link: Link, seconds: float) -> None:
        """Listen, and tell the sleepers what rang. When the connection breaks, they must all look for themselves."""
        names = None
        try:
            names = _listen_on(link, seconds)
        except psycopg.Error:
            link.close()
        finally:
            self._leave(link if names is not None else None, names)

    def _leave(self, link: Link | None, names: set[str] | None = None) -> None:
        with self._turn:
            self._attended = False
            self._link = link
            for sleeper in self._sleepers:
                sleeper.rung = sleeper.rung or names is None or not names.isdisjoint(sleeper.queues)
            self._turn.notify_all()
        if self._database.closed:
            self.close()


def _listen_on(link: Link, seconds: float) -> set[str]:
    """Return the queues that rang."""
    poll = select.poll()
    poll.register(link.pgconn.socket, select.POLLIN)
    if not poll.poll(seconds * 1000):
        return set()
    link.pgconn.consume_input()
    names = set()
    while notification := link.pgconn.notifies():
        names.add(notification.extra.decode())
    return names
