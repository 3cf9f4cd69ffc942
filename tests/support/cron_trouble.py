"""What tests do to driven schedulers (support/cron_driven.py): who takes what they fire, and what befalls them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.broker.config_file import sqlite_url
from jobpool.errors import BackendUnavailable
from support.cron_driven import Drive
from support.harness import Harness
from support.servers import shared_postgres
from support.waiting import wait_until

MOST_BEHIND = 900.0
"""Seconds by which the best scheduler may be behind: time waits for it then, however busy the machine is."""

LIMIT = 90.0

PACE = 0.008
"""Seconds of the test's own between two steps, at least."""


def way_to(harness: Harness) -> tuple[str, dict[str, Any]]:
    """The URL and options with which another process reaches the harness's store."""
    if "sqlite" in type(harness).__name__.lower():
        return sqlite_url(harness.folder / "turned.db"), {}
    parts: Any = harness
    if hasattr(parts, "_schema"):
        return shared_postgres().url(), {"schema": parts._schema.name}
    return parts._server.url, {"prefix": parts._prefix}


class Consumer:
    """A worker that takes whatever is there, and counts it by the schedule's name and the instant."""

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend
        self.seen: Counter[tuple[str, str]] = Counter()

    def work(self) -> None:
        """Nothing is lost when the broker does not answer in time: it is there the next time."""
        try:
            leases = self._backend.fetch_many("work", limit=200, ttl=100_000.0)
        except BackendUnavailable:
            return
        for lease in leases:
            wait_until(lambda lease=lease: self._ack(lease), LIMIT)  # type: ignore[misc]
            self.seen[lease.envelope.name or "", lease.envelope.meta["scheduled_for"]] += 1

    def _ack(self, lease: Any) -> bool:
        try:
            return bool(self._backend.ack(lease))
        except BackendUnavailable:
            return False

    def wait_fired(self, expected: set[tuple[str, str]], seed: str) -> None:
        """What was due in the last moments may still be on its way."""

        def all_fired() -> bool:
            self.work()
            return expected <= set(self.seen)

        try:
            wait_until(all_fired, LIMIT)
        except AssertionError:
            raise AssertionError(f"never fired: {sorted(expected - set(self.seen))}; {seed}") from None

    def repeated(self) -> list[tuple[str, str]]:
        """What was fired more than once."""
        return [fired for fired, count in self.seen.items() if count > 1]


class Trouble:
    """What happens to the schedulers, and when; each event has its end.

    Attributes:
        kills: So many schedulers that ran were killed until now.
    """

    def __init__(self, drive: Drive, dice: random.Random, steps: int, events: int) -> None:
        self._drive = drive
        self._dice = dice
        self.kills = 0
        self.plan: dict[int, list[Callable[[], None]]] = {}
        for at in sorted(dice.sample(range(5, steps - 60), events)):
            self._add(at)

    def _add(self, at: int) -> None:
        number, until = self._dice.choice(self._drive.numbers), at + self._dice.randint(5, 50)
        match self._dice.choice(("kill", "freeze", "clock", "clock")):
            case "kill":
                self._put(at, lambda: self._kill(number))
                self._put(until, lambda: self._restart(number))
            case "freeze":
                self._put(at, lambda: self._drive.freeze(number, True))
                self._put(until, lambda: self._drive.freeze(number, False))
            case _:
                step = self._dice.choice((3600.0, -3600.0))
                self._put(at, lambda: self._drive.set_clock(number, step))
                self._put(until, lambda: self._drive.set_clock(number, 0.0))

    def _kill(self, number: int) -> None:
        self.kills += self._drive.is_running(number)
        self._drive.kill(number)

    def _restart(self, number: int) -> None:
        self._kill(number)
        self._drive.start(number)

    def _put(self, at: int, what: Callable[[], None]) -> None:
        self.plan.setdefault(at, []).append(what)

    def end(self) -> None:
        for number in self._drive.numbers:
            self._drive.freeze(number, False)
            self._drive.set_clock(number, 0.0)


def pass_time(
    harness: Harness, drive: Drive, trouble: Trouble, consumer: Consumer, steps: int, step_seconds: float
) -> None:
    """Let the time pass, and what is planned happen."""
    for step in range(steps):
        for what in trouble.plan.get(step, ()):
            what()
        _let_up(drive)
        harness.advance(step_seconds)
        drive.advance(step_seconds)
        time.sleep(PACE)
        if step % 8 == 0 and not drive.any_frozen:  # one that is frozen may be in the middle of a write to SQLite
            consumer.work()


def _let_up(drive: Drive) -> None:
    """When nobody is left who could fire, somebody is let go on; and time waits for who comes up."""
    if drive.behind() > MOST_BEHIND:
        for number in drive.numbers:
            drive.freeze(number, False)
        wait_until(lambda: drive.behind() <= MOST_BEHIND or _revive(drive), LIMIT, "a scheduler is up")


def _revive(drive: Drive) -> bool:
    """Start those that are dead and have not been started yet."""
    for number in drive.numbers:
        if not drive.is_running(number):
            drive.start(number)
    return False


def instant(moment: datetime) -> str:
    """As jobs are told."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
