"""Harnesses of the Redis backends: servers whose clocks stand still, and servers that run as ever."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from jobpool.broker.backend import QueueBackend
from jobpool_backends.redis import RedisBackend, RedisClusterBackend
from support.harnesses.base import Opener, TurnedClock
from support.servers import RedisCluster, RedisServer, fresh_name, shared_redis, shared_redis_cluster

PATIENCE = 30.0
"""Seconds that a live client waits for a reply: a crowd keeps all cores busy."""


class RedisHarness(TurnedClock):
    capabilities = RedisBackend.capabilities
    backend: ClassVar[type[RedisBackend]] = RedisBackend

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = self.server(turned=True)
        self._server.flush()
        self._server.turn_to(self.clock.wall())
        self._prefix = fresh_name()

    @staticmethod
    def server(turned: bool) -> RedisServer | RedisCluster:
        return shared_redis(turned)

    def connect(self, **options: Any) -> QueueBackend:
        return self.backend.from_url(
            self._server.url, clock=self.clock, prefix=self._prefix, **{"timeout": PATIENCE, **options}
        )

    def opener(self) -> Opener:
        url = self.server(turned=False).url
        return partial(self.backend.from_url, url, prefix=fresh_name(), timeout=PATIENCE)

    def show(self, wall: float) -> None:
        self._server.turn_to(wall)


class RedisClusterHarness(RedisHarness):
    """Three masters; what spans queues spans nodes."""

    capabilities = RedisClusterBackend.capabilities
    backend = RedisClusterBackend

    @staticmethod
    def server(turned: bool) -> RedisServer | RedisCluster:
        return shared_redis_cluster(turned)
