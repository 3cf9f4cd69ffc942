"""Harness of the beanstalkd backend: a server whose clock stands still, and one that runs as ever."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool_backends.beanstalk import BeanstalkBackend
from support.harnesses.base import Opener, TurnedClock
from support.servers import fresh_name, shared_beanstalk

PATIENCE = 30.0
"""Seconds that a live client waits for an answer: a crowd keeps all cores busy."""

TTR = 30
"""Seconds that every lease lasts, whatever its fetch asks for."""


class BeanstalkHarness(TurnedClock):
    """Each test has tubes of its own.

    With every turn the server's clock goes a microsecond further than ours. beanstalkd 1.12 ends a lease after its
    deadline, and forgets it, until its holder speaks, when time lands on the deadline itself: as tests do.
    """

    capabilities = BeanstalkBackend.capabilities
    tick = 1e-3

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = shared_beanstalk(turned=True)
        self._ahead = 0.0
        self._prefix = _prefix()
        self._server.turn_to(self.clock.wall())

    def connect(self, **options: Any) -> QueueBackend:
        return BeanstalkBackend.from_url(
            self._server.url, clock=self.clock, **{"ttr": TTR, "tube_prefix": self._prefix, **options}
        )

    def opener(self) -> Opener:
        url = shared_beanstalk().url
        return partial(BeanstalkBackend.from_url, url, tube_prefix=_prefix(), timeout=PATIENCE)

    def lasts(self, ttl: float) -> float:
        del ttl  # the queue's messages say
        return float(TTR)

    def show(self, wall: float) -> None:
        self._ahead += 1e-6
        self._server.turn_to(wall + self._ahead)


def _prefix() -> str:
    return f"{fresh_name()}."
