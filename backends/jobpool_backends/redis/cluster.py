"""`RedisClusterBackend`: queues spread over the nodes of a Redis Cluster, each of them whole on one node."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from jobpool.broker.values import Capabilities, Reaped, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool_backends.redis.backend import RedisBackend
from jobpool_backends.redis.link import Link
from jobpool_backends.redis.outbox import Outbox


class RedisClusterBackend(RedisBackend):
    """Messages in a Redis Cluster. All keys of a queue are in one slot, so its node does each verb in one atomic step.

    A call for several queues works queue by queue. An `enqueue_many` may be half done when it raises, and is to be
    repeated with its ids; an id is unique only in its queue. Messages that a settlement brings to other queues wait in
    an outbox, which is written in the same step. They are brought there right after it, or after a crash by the next
    reap of the queue.

    Args:
        link: To the cluster; closed with this.
        options: As `RedisBackend` takes them.
    """

    scheme: ClassVar[str] = "redis+cluster"
    capabilities: ClassVar[Capabilities] = replace(RedisBackend.capabilities, atomic_across_queues=False)
    spread: ClassVar[bool] = True

    def __init__(self, link: Link, **options: Any) -> None:
        super().__init__(link, **options)
        self._outbox = Outbox(self._link, self._names, self._producer)

    def _relay(self, queues: Collection[str]) -> None:
        with suppress(BackendUnavailable):  # the settlement is done, and is to be told so; the next reap brings them
            self._outbox.relay(queues)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        reaped = super()._reap(queue, policy, visibility_timeout)
        self._relay([queue])
        return reaped
