"""Harness of the Redis backend: a server whose clock stands still, and one that runs as ever."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from jobpool.backend import QueueBackend
from jobpool_backends.redis import RedisBackend
from support.harnesses.base import Opener, TurnedClock
from support.servers import fresh_name, shared_redis

PATIENCE = 30.0
"""Seconds that a live client waits for a reply: a crowd keeps all cores busy."""


class RedisHarness(TurnedClock):
    capabilities = RedisBackend.capabilities

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = shared_redis(turned=True)
        self._server.flush()
        self._server.turn_to(self.clock.wall())
        self._prefix = fresh_name()

    def connect(self) -> QueueBackend:
        return RedisBackend.from_url(self._server.url, clock=self.clock, prefix=self._prefix)

    def opener(self) -> Opener:
        return partial(RedisBackend.from_url, shared_redis().url, prefix=fresh_name(), timeout=PATIENCE)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._server.turn_to(self.clock.wall())
