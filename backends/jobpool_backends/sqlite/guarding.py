"""Granting what deliveries need: all of it or nothing for each lease, a whole batch in one write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from jobpool.message.guards import Begin, Begun, Guards
from jobpool.message.lease import JobLease
from jobpool_backends.shared import KEY_PLACE, MICRO, longest_windows
from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.facts import Fact, judge, number, read_facts
from jobpool_backends.sqlite.places import Places
from jobpool_backends.sqlite.rates import Rates


def begin(connection: sqlite3.Connection, now: Moment, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
    """Return the answer for each; see `KeyStore.begin_many`."""
    facts = read_facts(connection, [lease for lease, _ in asked])
    desk = _Desk(Places(connection, now), Rates(connection, now.wall))
    answers = []
    for lease, guards in asked:
        fact = facts.get(number(lease))
        live = fact is not None and judge(fact, lease, now)
        answers.append(desk.begin(fact, lease.owner_token, guards) if fact and live else Begun(Begin.LOST))
    return answers


class _Desk:
    def __init__(self, places: Places, rates: Rates) -> None:
        self._places = places
        self._rates = rates

    def begin(self, message: Fact, token: str, guards: Guards) -> Begun:
        refused = self._try(message, token, guards)
        if refused is not None:
            return refused
        for name, _, _ in _all_holds(guards):
            self._places.occupy(name, message)
        for name, window in longest_windows(guards.rates).items():
            self._rates.count(message.queue, name, window, token)
        return Begun(Begin.GRANTED)

    def _try(self, message: Fact, token: str, guards: Guards) -> Begun | None:
        queue = message.queue
        if guards.key is not None and self._places.is_done(queue, guards.key):
            return Begun(Begin.DONE, guards.key)
        for name, most, shown in _all_holds(guards):
            if self._places.others(queue, name, message.seq) >= most:
                return Begun(Begin.HELD, shown)
        for rate in guards.rates:
            after = self._rates.until_room(queue, rate, token)
            if after:
                return Begun(Begin.LIMITED, rate.name, after / MICRO)
        return None


def _all_holds(guards: Guards) -> Iterator[tuple[str, int, str]]:
    """Yield the name of each place, how many there are under it, and what it is called when it refuses."""
    if guards.key is not None:
        yield KEY_PLACE + guards.key, 1, guards.key
    for hold in guards.holds:
        yield hold.name, hold.most, hold.name
