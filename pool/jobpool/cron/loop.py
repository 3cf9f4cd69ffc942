"""The scheduler's loop: wait until something is due, do it, say so. Broker outages are waited out."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from jobpool.cron.firing import Firing, FiringStatus
from jobpool.cron.runner import CronRunner
from jobpool.errors import BackendUnavailable
from jobpool.message.definition import rfc3339

RETRY_FIRST = 1.0
RETRY_LONGEST = 30.0
"""Seconds between two tries while the broker is silent: doubling from the one to the other."""

SHORTEST_SLEEP = 0.001
"""Seconds: a timer that ends a hair too early must not make a busy loop."""

log = logging.getLogger("jobpool.cron")

LEVELS = {
    FiringStatus.FIRED: logging.INFO,
    FiringStatus.ALREADY: logging.DEBUG,
    FiringStatus.SKIPPED: logging.INFO,
    FiringStatus.MISSED: logging.WARNING,
    FiringStatus.FAILED: logging.ERROR,
    FiringStatus.LATER: logging.DEBUG,
}
EVENTS = {
    FiringStatus.FIRED: "schedule fired",
    FiringStatus.ALREADY: "fired by another scheduler",
    FiringStatus.SKIPPED: "schedule skipped",
    FiringStatus.MISSED: "firings were missed",
    FiringStatus.FAILED: "firing failed",
    FiringStatus.LATER: "firing is tried again",
}


class Sleeper(Protocol):
    """The waiting place of the loop."""

    def stopped(self) -> bool:
        """Return whether it is to end."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until it is to end."""
        ...


class CronLoop:
    """A loop that runs a `CronRunner` at the right moments.

    Args:
        runner: The runner.
        sleeper: Waits, and ends the loop.
        tell: Called with the firings of each tick, in place of the log.
    """

    def __init__(
        self, runner: CronRunner, sleeper: Sleeper, tell: Callable[[Sequence[Firing]], object] | None = None
    ) -> None:
        self._runner = runner
        self._sleeper = sleeper
        self._tell = tell or report
        self._retries = 0
        self._silent = ""
        self._is_ready = False

    def run(self) -> None:
        """Go on until the sleeper is stopped. Blocks; an inline job is run to its end, and no other is begun."""
        while not self._sleeper.stopped():
            self._sleeper.sleep(self._turn())

    def _turn(self) -> float:
        """Do what is due; for how many seconds there is nothing to do then."""
        try:
            firings = self._runner.run(stopped=self._sleeper.stopped)
            self._tell(firings)
            self._note_broker(self._runner.silence)
            self._say_ready()
            if any(firing.status is FiringStatus.LATER for firing in firings):
                return min(self._pause(), self._until_due())
            self._retries = 0
            return self._until_due()
        except BackendUnavailable as error:
            self._note_broker(str(error))
            return self._pause()

    def _until_due(self) -> float:
        """Return seconds until the next instant that is not yet there; what is there and undecided has its own
        pause.
        """
        patience, now = self._runner.time.patience, self._runner.time.now()
        patience = max(patience, RETRY_LONGEST) if self._retries else patience  # to look is to try again
        due = self._runner.next_due(now if self._retries else None)
        if due is None:
            return patience
        return min(max((due - now).total_seconds(), SHORTEST_SLEEP), patience)

    def _pause(self) -> float:
        pause = min(RETRY_LONGEST, RETRY_FIRST * 2.0 ** min(self._retries, 10))
        self._retries += 1
        return pause * random.uniform(0.75, 1.0)

    def _note_broker(self, error: str) -> None:
        """Log an outage once, and its end once."""
        if error and not self._silent:
            log.warning("the broker does not answer", extra={"fields": {"error": error}})
        elif self._silent and not error:
            log.info("the broker answers again")
        self._silent = error

    def _say_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            served = [one for one in self._runner.planned if self._runner.serves(one)]
            due = self._runner.next_due()
            clock = "the broker's" if self._runner.time.of_broker else "this machine's"
            fields = {"schedules": len(served), "clock": clock, "next": _shown(due)}
            log.info("cron is ready", extra={"fields": fields})


def report(firings: Sequence[Firing]) -> None:
    """Log one line for each firing."""
    for firing in firings:
        fields = firing.to_dict()
        fields.pop("status")
        extra: dict[str, object] = {"fields": fields}
        if firing.status is not FiringStatus.FIRED:
            extra["limit"] = EVENTS[firing.status]
        log.log(LEVELS[firing.status], EVENTS[firing.status], extra=extra)


def _shown(due: datetime | None) -> str:
    return "never" if due is None else rfc3339(due)
