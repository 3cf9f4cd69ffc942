"""A link to a Redis Cluster: each call goes to the node that holds its keys.

The table of slots is asked for at the first call, and again after any failure. A slot that was moved is followed to
where the node says; that node has done nothing, so nothing is done twice.

Own routing over one `ServerLink` a node, not redis-py's `RedisCluster`: that one retries by itself for seconds, and
cannot wait in several slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from redis.exceptions import AskError, MovedError, RedisError, ResponseError

from jobpool.errors import BackendUnavailable
from jobpool_backends.redis.address import Address
from jobpool_backends.redis.asking import ask_in_turn, open_and_ask
from jobpool_backends.redis.link import Link, Script, ServerLink, first_error
from jobpool_backends.redis.manywaits import ManyWaits, NodeLink
from jobpool_backends.redis.slots import Host, read_slots, slot_of
from jobpool_backends.redis.wire import Endpoint, Word

T = TypeVar("T")

_MOST_MOVES = 5
"""How often a call follows a slot that was moved, before it gives up."""

_KEYLESS = frozenset({"PING", "TIME", "INFO", "CONFIG", "CLUSTER", "CLIENT", "ROLE", "SCRIPT", "ACL", "COMMAND"})


class ClusterLink(Link):
    """Connections to all masters of one cluster."""

    is_cluster: ClassVar[bool] = True

    def __init__(self, address: Address) -> None:
        self._node = replace(address.node, role="Redis Cluster node")
        self._known = tuple(replace(seed, role=self._node.role) for seed in address.seeds)
        self._title = f"Redis Cluster ({', '.join(seed.name for seed in address.seeds)})"
        self._nodes: dict[Host, NodeLink] = {}
        self._owners: list[Host | None] = []  # by slot; empty when it is to be asked for
        self._changing = threading.Lock()
        self._waits = ManyWaits()
        self.closed = False

    @property
    def title(self) -> str:
        return self._title

    def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word]) -> Any:
        whole = ("EVAL", script.source, len(keys), *keys, *args)
        return self._at(keys[0], lambda node: node.run(script, keys, args), whole)

    def call(self, *words: Word) -> Any:
        key = _key_of(words)
        if key is None:
            return self._any_node().call(*words)
        return self._at(key, lambda node: node.call(*words), words)
