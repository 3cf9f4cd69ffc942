"""Sleep until a queue may have something, asking seldom.

Producers ring (NOTIFY), and sleepers hear it (LISTEN), on a connection of its own. That is only a hint: sleepers also
look now and then, because a pooler swallows the ring, and because of a gap. NOTIFY makes commits wait for each other,
so nobody rings unless the table `sleepers` shows a sleeper. An enqueue that looked there just before we lay down, and
commits just after we looked, rings for nobody. So the first looks come soon after each other, and then ever more
seldom.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobpool.errors import BackendUnavailable
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.literals import quoted
from jobpool_backends.postgres.notify import Notifications, Sleeper
from jobpool_backends.shared import MICRO

LOOK_INTERVAL_S = 0.5
"""Seconds between two looks of somebody who hears the bell, when all is quiet."""

UNNOTIFIED_LOOK_INTERVAL_S = 0.25
"""The same, of somebody who hears nothing."""

_FIRST_LOOK_S = 0.01
_HOPEFUL_S = 0.1
"""Seconds after a find for which the next is likely to be there already."""

_MIN_REST_S = 0.001
_MAX_REST_S = 0.008
"""Seconds to rest after bells that brought nothing: messages that others take must not keep this thread busy."""

_MAX_QUIET_ENTRIES = 100

_LOOK = """
WITH clock AS MATERIALIZED (SELECT {schema}.moment() AS now){lie_down}
SELECT asked.name, {schema}.is_ready(asked.name, clock.now), (
    SELECT m.available_at FROM {schema}.messages m WHERE m.queue = asked.name AND m.state = 1
    ORDER BY m.available_at LIMIT 1) - clock.now, {lain}
FROM unnest(%(queues)b::text[]) AS asked (name), clock
"""
"""Which of these queues has a waiting message, and the microseconds until the first delayed one of each falls due."""

_LIE_DOWN = """,
    hasty AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
    lain AS (
        INSERT INTO {schema}.sleepers (queue) SELECT unnest(%(queues)b::text[]) FROM hasty ON CONFLICT DO NOTHING
        RETURNING queue)"""
"""With a look: messages of these queues shall ring from now on. Waits for no disk: after a crash nobody sleeps."""

_LAIN = "EXISTS (SELECT FROM lain)"
"""Check whether nobody had been asleep for one of them."""


class Waiter:
    """The wait on one database; any number of threads at once.

    Args:
        database: Asked for what is ready.
        listen: True if LISTEN may be used.
    """

    def __init__(self, database: Database, *, listen: bool = True) -> None:
        self._database = database
        self._notifications = Notifications(database)
        self._may_listen = listen
        self._quiet: dict[tuple[str, ...], float] = {}
        just_look = _LOOK.replace("{lie_down}", "").replace("{lain}", "false")
        sleep_and_look = _LOOK.replace("{lie_down}", _LIE_DOWN).replace("{lain}", _LAIN)
        self._just_look = just_look.replace("{schema}", quoted(database.schema))
        self._sleep_and_look = sleep_and_look.replace("{schema}", quoted(database.schema))

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """See `QueueBackend.wait_any`. Raises BackendUnavailable as soon as a look does."""
        give_up = time.monotonic() + timeout
        names = tuple(queues)
        try:
            with self._notifications.sleeper(names) as sleeper:
                return self._wait(names, sleeper, give_up)
        except BackendUnavailable:
            if self._database.closed:  # here, just before a look
                return None
            raise

    def close(self) -> None:
        """Call it when the database has been closed: who waits comes back within half a second."""
        self._notifications.close()

    def _wait(self, names: tuple[str, ...], sleeper: Sleeper, give_up: float) -> str | None:
        rest = 0.0
        # To lie down is a write, and makes somebody ring: not while something is likely to be there. Nor is the last
        # connection that a server has left taken to listen on, when there is none to look with.
        hopeful = self._quiet_for(names) < _HOPEFUL_S or (self._may_listen and self._notifications.would_connect)
        while not self._database.closed:
            hears = not hopeful and self._may_listen and self._notifications.listen()
            sleeper.woken = False
            ready, due = self._look(names, asleep=hears)
            remaining = give_up - time.monotonic()
            if ready is not None or remaining <= 0:
                return ready
            if hopeful:
                hopeful = False
                time.sleep(rest)
                continue
            hopeful = self._notifications.wait(sleeper, min(remaining, due, self._pause(names, hears)))
            rest = min(_MAX_REST_S, rest * 2 or _MIN_REST_S) if hopeful else 0.0
            if not hopeful and time.monotonic() >= give_up:
                break
        return None

    def _look(self, names: tuple[str, ...], *, asleep: bool) -> tuple[str | None, float]:
        """Return a queue that has something now, or None and the seconds until a message falls due.

        Args:
            names: The queues.
            asleep: Ask for the bell to be rung when there is something.
        """
        sql = self._sleep_and_look if asleep else self._just_look
        # A plan that was made while nothing was delayed, and kept, would read the whole table when a million are.
        rows = self._database.run(sql, {"queues": list(names)}, prepare=False)
        until = MICRO
        for name, ready, due, lain in rows:
            if ready or lain:
                self._quiet[names] = time.monotonic()
            if ready:
                return name, 0.0
            until = min(until, until if due is None else due)
        return None, max(_MIN_REST_S, until / MICRO)

    def _pause(self, names: tuple[str, ...], hears: bool) -> float:
        """Return seconds until the next look: as long as it has been quiet."""
        return min(max(self._quiet_for(names), _FIRST_LOOK_S), LOOK_INTERVAL_S if hears else UNNOTIFIED_LOOK_INTERVAL_S)

    def _quiet_for(self, names: tuple[str, ...]) -> float:
        """Return seconds since a look found something, or since we lay down: somebody may not have seen that, and not
        ring.
        """
        if len(self._quiet) > _MAX_QUIET_ENTRIES:
            self._quiet.clear()
        now = time.monotonic()
        return now - self._quiet.setdefault(names, now)
