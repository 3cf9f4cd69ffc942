"""What the tests of the Redis backend share: a prefix of their own on a server, and a look behind the scenes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from support.servers import RedisServer, fresh_name, shared_redis

from jobpool.broker.backend import QueueBackend
from jobpool.message.lease import JobLease
from jobpool_backends.redis import RedisBackend
from jobpool_backends.redis.address import read_address
from jobpool_backends.redis.backend import open_link
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.keyspace import KeyNames
from jobpool_torture.network import Proxy

Start = Callable[..., RedisServer]
"""Starts a server with these directives of redis.conf."""


class Rig:
    """One prefix, and all that opens connections; a context manager that closes everything.

    Args:
        server: The one to use; None = that of the test process.
        kind: The class under test.

    Attributes:
        keys: The names of the prefix's keys.
    """

    def __init__(self, server: RedisServer | None = None, kind: type[RedisBackend] = RedisBackend) -> None:
        self.server = server or shared_redis()
        self.prefix = fresh_name()
        self.keys = KeyNames(self.prefix, spread=kind.spread)
        self._kind = kind
        self._opened: list[RedisBackend] = []
        self._link = open_link(read_address(self.server.url, {}))

    def open(self, **options: Any) -> RedisBackend:
        """A backend; closed at the end."""
        self._opened.append(self._kind.from_url(self.server.url, prefix=self.prefix, **options))
        return self._opened[-1]

    def call(self, *words: str | bytes | float) -> Any:
        """One plain command, on a connection of the rig's own."""
        return self._link.call(*words)

    def key(self, name: str, queue: str = "reports") -> str:
        return self.keys.one(queue, name)

    def holds(self, name: str, queue: str = "reports") -> int:
        """How much is in a key."""
        kind = self.call("TYPE", self.key(name, queue)).decode()
        size = {"zset": "ZCARD", "hash": "HLEN", "list": "LLEN", "set": "SCARD", "string": "STRLEN"}
        return int(self.call(size[kind], self.key(name, queue))) if kind in size else 0

    def names(self) -> set[str]:
        """All keys of the prefix."""
        return {name.decode() for name in self.call("KEYS", f"{self.prefix}:*")}

    def commands(self) -> Counter[str]:
        """How often the server has run each command, those within scripts included."""
        lines = self.call("INFO", "commandstats").decode().splitlines()
        pairs = (line.removeprefix("cmdstat_").split(":calls=") for line in lines if ":calls=" in line)
        return Counter({name: int(rest.split(",")[0]) for name, rest in pairs})

    def spent(self, work: Callable[[], object]) -> Counter[str]:
        """The commands that `work` runs on the server; those with which we look are not counted."""
        before = self.commands()
        work()
        return Counter({name: count for name, count in (self.commands() - before).items() if name != "info"})

    def close(self) -> None:
        for backend in self._opened:
            backend.close()
        if self.server.running:
            for name in self.names():
                self.call("DEL", name)
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def linked(place: str | RedisServer | Proxy, **options: Any) -> Iterator[Link]:
    """A link to what a URL names, or to one server."""
    url = place if isinstance(place, str) else f"redis://{place.host}:{place.port}"
    link = open_link(read_address(url, options))
    try:
        yield link
    finally:
        link.close()


def take(backend: QueueBackend, limit: int = 1, queue: str = "reports", ttl: float = 30.0) -> list[JobLease]:
    """Lease up to `limit` messages."""
    return backend.fetch_many(queue, limit=limit, ttl=ttl)
