"""Sleep until a queue may have something, asking seldom.

Enqueues notify (NOTIFY on a channel of the schema), and sleepers listen (LISTEN on a connection of its own). That is
only a hint: sleepers also look now and then, because a pooler swallows notifications, and because of a gap. NOTIFY
makes commits wait for each other, so nobody notifies unless the table `sleepers` shows a sleeper. An enqueue that
looked there just before we lay down, and commits just after we looked, notifies nobody. So the first looks come soon
after each other, and then ever more seldom.

One connection a process listens, read by a thread that sleeps anyway; it tells the others.

A sleeper that is notified does not look again: the fetch that follows does. That saves a round trip. Soon after a
fetch in vain it looks, for others take what it is woken for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from jobpool.broker.values import LOOK_INTERVAL_S
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool_backends.polling import POLLIN, poll
from jobpool_backends.postgres.connection import Connection
from jobpool_backends.postgres.database import Database
from jobpool_backends.shared import MICRO

LISTEN_RETRY_S = 3.0  # when the server gives no connection to listen on
_RECONNECT_S = 1.0  # when the connection that listened broke

UNNOTIFIED_LOOK_INTERVAL_S = 0.25  # between two looks where nobody can listen

_FIRST_LOOK_S = 0.01
_HOPEFUL_S = 0.1  # after a find, for which the next is likely to be there already

# Rest after wake-ups that brought nothing: messages that others take must not keep this thread busy.
_MIN_REST_S = 0.001
_MAX_REST_S = 0.008

_MAX_QUIET_ENTRIES = 100

# Which of these queues has a waiting message, and the microseconds until the first delayed one of each falls due. The
# last column is true if nobody had been asleep for one of them.
_LOOK = """
WITH clock AS MATERIALIZED (SELECT {schema}.moment() AS now){lie_down}
SELECT asked.name, {schema}.is_ready(asked.name, clock.now), (
    SELECT m.available_at FROM {schema}.messages m WHERE m.queue = asked.name AND m.state = 1
    ORDER BY m.available_at LIMIT 1) - clock.now, {lain}
FROM unnest(%(queues)b::text[]) AS asked (name), clock
"""
# With a look: enqueues to these queues notify from now on. Waits for no disk: after a crash nobody sleeps.
_LIE_DOWN = """,
    hasty AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
    lain AS (
        INSERT INTO {schema}.sleepers (queue) SELECT unnest(%(queues)b::text[]) FROM hasty ON CONFLICT DO NOTHING
        RETURNING queue)"""
_JUST_LOOK = _LOOK.replace("{lie_down}", "").replace("{lain}", "false")
_LIE_DOWN_AND_LOOK = _LOOK.replace("{lie_down}", _LIE_DOWN).replace("{lain}", "EXISTS (SELECT FROM lain)")


def channel(schema: str) -> str:
    """Return the channel on which the messages of this schema are announced; the payload is the queue's name."""
    return f"jobpool:{schema}"


class Sleeper:
    """One thread that waits for some queues, and whether it was woken; `named`: the queue that it was notified of."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self.woken = False
        self.named: str | None = None


class Waiter:
    """The wait on one database, for messages or ends of jobs, and kept results; any number of threads at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._may_listen = database.address.listen
        self._quiet: dict[tuple[str, ...], float] = {}
        self._turn = threading.Condition(threading.Lock())
        self._sleepers: set[Sleeper] = set()
        self._connection: Connection | None = None
        self._attended = False
        self._listen_next = 0.0
        self._trust_next = 0.0

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """See `QueueBackend.wait_any`. Raises BackendUnavailable as soon as a look does."""
        give_up = time.monotonic() + timeout
        try:
            if timeout <= 0:  # no lying down: the next sleeper would think that it had lain, and looked again, before
                return next((name for name, ready, *_ in self._rows(queues, _JUST_LOOK) if ready), None)
            with self._sleeper(queues) as sleeper:
                return self._wait(tuple(queues), sleeper, give_up)
        except BackendUnavailable:
            if self._database.closed:  # here, just before a look
                return None
            raise

    def trust(self) -> None:
        """Take the next notification at its word: a fetch has found something."""
        self._trust_next = 0.0

    def get(self, idents: Sequence[str]) -> dict[str, bytes]:
        """Return the kept results of these jobs, by their ids."""
        return dict(self._database.call("find_results", list(idents)))

    def wait(self, idents: Sequence[str], timeout: float) -> None:
        """Wait until one of these jobs has ended, or for a while. Raises BackendUnavailable as soon as a look does."""
        with self._sleeper(f"={ident}" for ident in idents) as sleeper:
            hears = self._may_listen and self._listen()
            if not self._database.value("await_ends", list(idents)):
                self._sleep(sleeper, timeout if hears else min(timeout, UNNOTIFIED_LOOK_INTERVAL_S))
                if not sleeper.woken:  # else the row is gone
                    self._database.call("await_no_more", list(idents))

    def close(self) -> None:
        """Wake all sleepers; the listening thread closes its connection within half a second."""
        if self._database.is_inherited:
            return  # the connection is the parent's
        with self._turn:
            if self._connection is not None and not self._attended:
                self._connection.close()
                self._connection = None
            self._turn.notify_all()

    @contextmanager
    def _sleeper(self, names: Iterable[str]) -> Iterator[Sleeper]:
        """Yield a sleeper that hears every notification of these names from here on."""
        sleeper = Sleeper(names)
        with self._turn:
            self._sleepers.add(sleeper)
        try:
            yield sleeper
        finally:
            with self._turn:
                self._sleepers.discard(sleeper)

    def _wait(self, names: tuple[str, ...], sleeper: Sleeper, give_up: float) -> str | None:
        rest = 0.0
        # To lie down is a write, and makes enqueues notify: not while something is likely to be there. Nor is the last
        # connection that a server has left taken to listen on, when there is none to look with.
        hopeful = self._quiet_for(names) < _HOPEFUL_S or (self._may_listen and self._would_connect())
        while not self._database.closed:
            hears = not hopeful and self._may_listen and self._listen()
            sleeper.woken, sleeper.named = False, None
            ready, due = self._look(names, asleep=hears)
            remaining = give_up - time.monotonic()
            if ready is not None or remaining <= 0:
                return ready
            if hopeful:
                hopeful = False
                time.sleep(rest)
                continue
            quiet = max(self._quiet_for(names), _FIRST_LOOK_S)  # the longer, the less often a look
            pause = min(quiet, LOOK_INTERVAL_S if hears else UNNOTIFIED_LOOK_INTERVAL_S)
            hopeful = self._sleep(sleeper, min(remaining, due, pause))
            if sleeper.named is not None and time.monotonic() >= self._trust_next:
                self._quiet[names] = time.monotonic()
                self._trust_next = self._quiet[names] + _HOPEFUL_S
                return sleeper.named
            rest = min(_MAX_REST_S, rest * 2 or _MIN_REST_S) if hopeful else 0.0
            if not hopeful and time.monotonic() >= give_up:
                break
        return None

    def _look(self, names: tuple[str, ...], *, asleep: bool) -> tuple[str | None, float]:
        """Return a queue that has something now, or None and the seconds until one falls due. `asleep`: be notified."""
        until = MICRO
        for name, ready, due, lain in self._rows(names, _LIE_DOWN_AND_LOOK if asleep else _JUST_LOOK):
            if ready or lain:
                self._quiet[names] = time.monotonic()
            if ready:
                return name, 0.0
            until = min(until, until if due is None else due)
        return None, max(_MIN_REST_S, until / MICRO)

    def _rows(self, names: Sequence[str], look: str) -> list[tuple[Any, ...]]:
        # A plan that was made while nothing was delayed, and kept, would read the whole table when a million are.
        return self._database.run(look, {"queues": list(names)}, prepare=False)

    def _quiet_for(self, names: tuple[str, ...]) -> float:
        """Return seconds since a look found something, or since we lay down: an enqueue may not have seen that."""
        if len(self._quiet) > _MAX_QUIET_ENTRIES:
            self._quiet.clear()
        now = time.monotonic()
        return now - self._quiet.setdefault(names, now)

    def _would_connect(self) -> bool:
        """Return whether nobody listens, and it is time to try."""
        return self._connection is None and not self._database.pooled and time.monotonic() >= self._listen_next

    def _listen(self) -> bool:
        """Listen, if possible; return whether somebody does. A look must follow, for what came before."""
        with self._turn:
            if self._connection is not None:
                return True
            if self._attended or not self._would_connect():
                return False
            self._attended = True
        connection = None
        try:
            connection = self._connect()
        finally:
            self._leave(connection)
        return connection is not None

    def _sleep(self, sleeper: Sleeper, seconds: float) -> bool:
        """Return whether this sleeper is notified within `seconds`."""
        give_up = time.monotonic() + seconds
        while not sleeper.woken and not self._database.closed and (remaining := give_up - time.monotonic()) > 0:
            with self._turn:
                connection = None if self._attended else self._connection
                if connection is None:
                    self._turn.wait(remaining)  # until another thread has listened, or tried
                else:
                    self._attended = True
            if connection is not None:
                self._receive(connection, remaining)
        return sleeper.woken

    def _connect(self) -> Connection | None:
        """Return a connection that listens; None if the server gives none, or a pooler is in between."""
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

    def _receive(self, connection: Connection, seconds: float) -> None:
        """Listen, and tell the sleepers. When the connection breaks, they must all look for themselves."""
        names: set[str] | None = None
        polled = poll()
        try:
            polled.register(connection.pgconn.socket, POLLIN)
            if polled.poll(seconds * 1000):
                connection.pgconn.consume_input()
            names = {notification.extra.decode() for notification in iter(connection.pgconn.notifies, None)}
        except psycopg.Error:
            connection.close()
        finally:
            self._leave(connection if names is not None else None, names)

    def _leave(self, connection: Connection | None, names: set[str] | None = None) -> None:
        with self._turn:
            self._attended = False
            self._connection = connection
            for sleeper in self._sleepers:
                sleeper.named = next(iter(sleeper.queues.intersection(names or ())), sleeper.named)
                sleeper.woken = sleeper.woken or names is None or sleeper.named is not None
            self._turn.notify_all()
        if self._database.closed:
            self.close()
