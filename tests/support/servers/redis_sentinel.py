"""A master, its replicas, and the sentinels that watch them: quick, so that a failover takes a second or two."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from redis.exceptions import ResponseError

from support.servers.process import LIMIT, ServerFailed
from support.servers.redis_server import RedisServer
from support.waiting import wait_until

SERVICE = "reports"
"""What the sentinels call the master."""

_PERIODS = {
    "ask-period": 50,
    "info-period": 50,
    # Five of these must be longer than the second between two looks at the replicas of a dead master: what a sentinel
    # knows of a replica is too old for it after that, and it promotes none.
    "ping-period": 300,
    "publish-period": 50,
    "slave-reconf-timeout": 500,
    "min-link-reconnect-period": 100,
    "election-timeout": 1000,
    "tilt-trigger": 60_000,  # else a busy machine makes it believe that its clock has jumped, and it does nothing
}
"""Milliseconds between what a sentinel does; a second and more when nothing is said."""


class Sentinel(RedisServer):
    """One sentinel, which watches the master on `port`; `quorum` of them must agree that it is down."""

    name = "redis-sentinel"

    def __init__(self, folder: Path, master: RedisServer, quorum: int, password: str | None = None) -> None:
        self._file = folder.absolute() / "sentinel.conf"  # which it rewrites as it learns
        self._password = password
        self._lines = [
            f"sentinel monitor {SERVICE} {master.host} {master.port} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} 800",
            f"sentinel failover-timeout {SERVICE} 1000",
            *([f"sentinel auth-pass {SERVICE} {password}", f"requirepass {password}"] if password else []),
        ]
        super().__init__(folder)

    def start(self) -> None:
        super().start()
        self.ask("SENTINEL", "DEBUG", *(word for period in _PERIODS.items() for word in period))

    def knows(self, sentinels: int, replicas: int) -> bool:
        """Whether it has found so many other sentinels, and so many replicas, all of them well."""
        others = self.ask("SENTINEL", "SENTINELS", SERVICE)
        healthy = [replica for replica in self.ask("SENTINEL", "REPLICAS", SERVICE) if b"ok" in replica]
        return (len(others), len(healthy)) == (sentinels, replicas)

    def master_port(self) -> int:
        """Of the server that it takes for the master."""
        return int(self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def _command(self, port: int) -> list[str]:
        if not self._file.exists():
            place = [f"port {port}", f"bind {self.host}", f"unixsocket {self.socket_path}", f"dir {self.folder}"]
            self._file.write_text("\n".join([*place, *self._lines]) + "\n")
        return ["redis-server", str(self._file), "--sentinel", "--port", str(port)]


class SentinelGroup:
    """A master, replicas of it and sentinels, all well and known to each other; a context manager that closes them.

    Args:
        folder: For all of them; made if it is missing.
        replicas: How many.
        sentinels: How many; the majority of them must agree on a failover.
        config: Directives of every Redis.
        password: Of every Redis and every sentinel.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 1,
        sentinels: int = 1,
        config: Mapping[str, str] | None = None,
        password: str | None = None,
    ) -> None:
        directives = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **(config or {})}
        if password:
            directives |= {"requirepass": password, "masterauth": password}
        self.servers = [RedisServer(folder / "0", config=directives)]
        directives["replicaof"] = f"127.0.0.1 {self.servers[0].port}"
        self.servers += [RedisServer(folder / str(number), config=directives) for number in range(1, replicas + 1)]
        quorum = sentinels // 2 + 1
        self.sentinels = [
            Sentinel(folder / f"s{number}", self.servers[0], quorum, password) for number in range(sentinels)
        ]
        wait_until(
            lambda: all(sentinel.knows(sentinels - 1, replicas) for sentinel in self.sentinels),
            what="the sentinels know all",
        )

    @property
    def url(self) -> str:
        """redis+sentinel://…, without a password."""
        hosts = ",".join(f"{sentinel.host}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def master(self) -> RedisServer:
        """The server that the first running sentinel takes for the master."""
        port = next(sentinel for sentinel in self.sentinels if sentinel.running).master_port()
        return next(server for server in self.servers if server.port == port)

    def fail_over(self) -> None:
        """Have a replica promoted while the master is well; returns when the sentinels name it."""
        before = self.master()

        def failed_over() -> bool:
            with suppress(ResponseError):  # one is under way, or no replica is well just now
                self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
            return self.master() is not before

        wait_until(failed_over, LIMIT, "the sentinels name another master")

    def close(self) -> None:
        """Stop all of them. Safe to call twice."""
        for server in [*self.sentinels, *self.servers]:
            with suppress(ServerFailed):
                server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
