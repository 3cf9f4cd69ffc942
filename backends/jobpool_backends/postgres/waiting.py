"""Sleep until a queue may have something, asking seldom.

Who makes messages fetchable rings (NOTIFY), and who sleeps hears it (LISTEN), on a connection of its own. That is a
hint and no more: everybody looks now and then all the same, because behind a pooler nothing is heard, and because of a
gap. NOTIFY makes commits wait for each other, so nobody rings unless somebody sleeps, which the table `sleepers` tells;
and an enqueue that looked there just before we lay down, and commits just after we looked, rings for nobody. So the
first looks come soon after each other, and then ever more seldom.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from jobpool.errors import JobpoolError
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.link import Link
from jobpool_backends.postgres.migrating import quoted
from jobpool_backends.shared import MICRO

LOOK_AGAIN = 0.5
"""Seconds between two looks of somebody who hears the bell, when all is quiet."""

WITHOUT_BELL = 0.25
"""The same, of somebody who hears nothing."""

LISTEN_AGAIN = 3.0
"""Seconds before the next try, when the server gives no connection to listen on."""

_RECONNECT = 1.0
"""The same, after the one that listened broke."""

_FIRST_LOOK = 0.01
_HOPEFUL = 0.1
"""Seconds after a find for which the next is likely to be there already."""

_SHORTEST_REST = 0.001
_LONGEST_REST = 0.008
"""Seconds to rest after bells that brought nothing: messages that others take must not keep this thread busy."""


_MOST_NAMES = 100

_LOOK = """
WITH clock AS MATERIALIZED (SELECT {schema}.moment() AS now){lie_down}
SELECT asked.name, {schema}.is_ready(asked.name, clock.now), (
    SELECT m.available_at FROM {schema}.messages m WHERE m.queue = asked.name AND m.state = 1
    ORDER BY m.available_at LIMIT 1) - clock.now
FROM unnest(%(queues)b::text[]) AS asked (name), clock
"""
"""Which of these queues has a waiting message, and the microseconds until the first delayed one of each falls due."""

_LIE_DOWN = """,
    lain AS (INSERT INTO {schema}.sleepers (queue) SELECT unnest(%(queues)b::text[]) ON CONFLICT DO NOTHING)"""
"""With a look: whoever makes messages of these queues fetchable from now on shall ring."""


def channel(schema: str) -> str:
    """The channel on which the messages of this schema are announced; the payload is the queue's name."""
    return f"jobpool:{schema}"


class Sleeper:
    """One thread that waits for some queues, and whether the bell has rung for one of them."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self.rung = False


class Bell:
    """What the threads of this process hear: one of them listens on the connection, for all.

    A connection a process, and no thread that nobody asked for; and who waits alone, as a pool does, hears without the
    detour through another thread.
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
        """A sleeper who is told of every ring from here on."""
        sleeper = Sleeper(queues)
        with self._turn:
            self._sleepers.add(sleeper)
        try:
            yield sleeper
        finally:
            with self._turn:
                self._sleepers.discard(sleeper)

    def listen(self) -> bool:
        """Whether rings are heard from now on; connects if need be. A look must follow, for what came before."""
        with self._turn:
            if self._link is not None:
                return True
            if self._attended or self._database.pooled or time.monotonic() < self._listen_next:
                return False
            self._attended = True
        link = None
        try:
            link = self._connect()
        finally:
            self._leave(link)
        return link is not None

    def wait(self, sleeper: Sleeper, seconds: float) -> bool:
        """Whether the bell rang for this sleeper, within so many seconds."""
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
        """Wake all sleepers, once the database is closed. Who listens closes the connection, within half a second."""
        with self._turn:
            if self._link is not None and not self._attended:
                self._link.close()
                self._link = None
            self._turn.notify_all()

    def _connect(self) -> Link | None:
        """A connection that listens; None where there is none to be had, or a pooler would swallow what it hears."""
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
        """The connection, for this thread to listen on; None after another thread has listened, or nobody could."""
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
    """The queues that rang."""
    poll = select.poll()
    poll.register(link.pgconn.socket, select.POLLIN)
    if not poll.poll(seconds * 1000):
        return set()
    link.pgconn.consume_input()
    names = set()
    while notification := link.pgconn.notifies():
        names.add(notification.extra.decode())
    return names


class Waiter:
    """Waits on one database; any number of threads at once.

    Args:
        database: Asked for what is ready.
        listen: Whether LISTEN may be used.
    """

    def __init__(self, database: Database, *, listen: bool = True) -> None:
        self._database = database
        self._bell = Bell(database)
        self._may_listen = listen
        self._quiet: dict[tuple[str, ...], float] = {}
        look = _LOOK.replace("{schema}", quoted(database.schema))
        self._just_look = look.replace("{lie_down}", "")
        self._sleep_and_look = look.replace("{lie_down}", _LIE_DOWN.replace("{schema}", quoted(database.schema)))

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """See `QueueBackend.wait_any`. Raises BackendUnavailable as soon as a look does."""
        give_up = time.monotonic() + timeout
        names = tuple(queues)
        with self._bell.sleeper(names) as sleeper:
            return self._wait(names, sleeper, give_up)

    def close(self) -> None:
        """Call it when the database has been closed: who waits comes back within half a second."""
        self._bell.close()

    def _wait(self, names: tuple[str, ...], sleeper: Sleeper, give_up: float) -> str | None:
        rest = 0.0
        hopeful = self._quiet_for(names) < _HOPEFUL
        while not self._database.closed:
            hears = self._may_listen and self._bell.listen()
            sleeper.rung = False
            # To lie down is a write, and makes somebody ring: not while something is likely to be there.
            ready, due = self._look(names, asleep=hears and not hopeful)
            remaining = give_up - time.monotonic()
            if ready is not None or remaining <= 0:
                return ready
            if hopeful:
                hopeful = False
                time.sleep(rest)
                continue
            hopeful = self._bell.wait(sleeper, min(remaining, due, self._pause(names, hears)))
            rest = min(_LONGEST_REST, rest * 2 or _SHORTEST_REST) if hopeful else 0.0
            if not hopeful and time.monotonic() >= give_up:
                break
        return None

    def _look(self, names: tuple[str, ...], *, asleep: bool) -> tuple[str | None, float]:
        """A queue that has something now, or None and the seconds until a message falls due.

        Args:
            names: The queues.
            asleep: Ask for the bell to be rung when there is something.
        """
        rows = self._database.run(self._sleep_and_look if asleep else self._just_look, {"queues": list(names)})
        until = MICRO
        for name, ready, due in rows:
            if ready or (due is not None and due <= 0):
                self._quiet[names] = time.monotonic()
                return name, 0.0
            until = min(until, due or until)
        return None, max(_SHORTEST_REST, until / MICRO)

    def _pause(self, names: tuple[str, ...], hears: bool) -> float:
        """Seconds until the next look: as long as it has been quiet."""
        return min(max(self._quiet_for(names), _FIRST_LOOK), LOOK_AGAIN if hears else WITHOUT_BELL)

    def _quiet_for(self, names: tuple[str, ...]) -> float:
        """Seconds since a look found something."""
        if len(self._quiet) > _MOST_NAMES:
            self._quiet.clear()
        now = time.monotonic()
        return now - self._quiet.setdefault(names, now)
