"""Brokers for the rig: a place of a test's own on a real server, and hosts, each with a network of its own to it."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg
from redis import Redis
from redis.crc import key_slot

from jobpool_torture.network import Proxy
from support.servers import (
    BeanstalkServer,
    PostgresServer,
    RedisServer,
    Server,
    fresh_name,
    shared_beanstalk,
    shared_postgres,
    shared_redis,
    shared_redis_cluster,
)
from support.servers.postgres_server import DURABLE as DURABLE_POSTGRES
from support.servers.redis_cluster import ClusterNode, RedisCluster
from support.servers.redis_server import DURABLE as DURABLE_REDIS
from support.waiting import wait_until

TTR = 10.0
"""Seconds that a lease lasts on beanstalkd, whatever a pool asks for: longer than a busy machine pauses."""

CONNECT_TIMEOUT = 20
"""Seconds for a connection straight to Postgres, which nothing holds up but the machine: a pool ends where its first
one takes longer."""

SHORT_TTR = 2.0
"""The same, for tests of what a lease's end brings."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine whose only way to the broker is `proxy`. `url`: what is written there for the broker."""

    proxy: Proxy
    url: str


class Broker(AbstractContextManager["Broker"]):
    """A queue's place on a server, empty at the start. Its end closes its hosts, and the server when it has its own.

    Attributes:
        server: What runs; shared by many tests unless it was made by `on_its_own`.
        place: The prefix or schema.
        hosts: Those that were asked for.
        settle_calls, fetch_calls: Regular expressions that find these among a host's requests.
        lasts: Seconds that a lease lasts where a pool cannot choose that; 0 = as long as it asks for. On beanstalkd it
            is a part of each URL, and may be set before the first is asked for.
    """

    settle_calls: ClassVar[str]
    fetch_calls: ClassVar[str]
    lasts: float = 0.0

    def __init__(self, server: Server, *, shared: bool = True) -> None:
        self.server = server
        self.place = fresh_name("pool")
        self.hosts: list[Host] = []
        self._shared = shared

    def __exit__(self, *_: object) -> None:
        self.end()

    @classmethod
    @abstractmethod
    def on_shared_server(cls) -> Self:
        """On the server of this process."""

    @classmethod
    @abstractmethod
    def on_its_own(cls, folder: Path) -> Self:
        """On a server that may be killed: it keeps what it has answered."""

    @property
    def url(self) -> str:
        """Straight to the server."""
        return self.url_at(self.server.host, self.server.port)

    @abstractmethod
    def url_at(self, host: str, port: int) -> str:
        """The place's URL, for who reaches the server there."""

    def host(self) -> Host:
        """One more host."""
        proxy = Proxy(self.server.host, self.server.port)
        self.hosts.append(Host(proxy, self.url_at(proxy.host, proxy.port)))
        return self.hosts[-1]

    def bring_back(self) -> None:
        """Start the server again, and return when it serves."""
        self.server.start()

    @abstractmethod
    def commands(self) -> int:
        """How many commands, or transactions, the server has carried out for anybody."""

    @abstractmethod
    def disconnect_all(self) -> int:
        """Let the server close every client's connection; how many."""

    def end(self) -> None:
        for host in self.hosts:
            host.proxy.close()
        if not self._shared:
            self.server.close()


class RedisBroker(Broker):
    settle_calls = ":call:settle:"
    fetch_calls = ":call:fetch:"

    @classmethod
    def on_shared_server(cls) -> Self:
        return cls(shared_redis())

    @classmethod
    def on_its_own(cls, folder: Path) -> Self:
        return cls(RedisServer(folder, config=DURABLE_REDIS), shared=False)

    def url_at(self, host: str, port: int) -> str:
        return f"redis://{host}:{port}/0?prefix={self.place}"

    def client(self) -> Redis:
        """To the server itself, for what no backend does."""
        return Redis(host=self.server.host, port=self.server.port)

    def commands(self) -> int:
        with self.client() as client:
            counted: Any = client.info("stats")
        return int(counted["total_commands_processed"])

    def disconnect_all(self) -> int:
        with self.client() as client:
            closed: Any = client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return int(closed)


class PostgresBroker(Broker):
    settle_calls = r'\{"default"'
    """An array of queues' names, which renewals have too; the statement itself is sent but twice a connection."""

    fetch_calls = r"\x00\x07default\x00\x00\x00[\x02\x04\x08]"
    """A queue's name and a number, which reaps have too."""

    server: PostgresServer

    @classmethod
    def on_shared_server(cls) -> Self:
        return cls(shared_postgres())

    @classmethod
    def on_its_own(cls, folder: Path) -> Self:
        return cls(PostgresServer(folder, config=DURABLE_POSTGRES), shared=False)

    def url_at(self, host: str, port: int) -> str:
        return f"postgresql://postgres@{host}:{port}/postgres?schema={self.place}"

    @property
    def url(self) -> str:
        return f"{super().url}&connect_timeout={CONNECT_TIMEOUT}"

    @property
    def server_url(self) -> str:
        """Of the database, with nothing of ours in it."""
        return f"postgresql://postgres@{self.server.host}:{self.server.port}/postgres"

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """What the server answers to a statement of the test's own."""
        with psycopg.connect(self.server_url, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    def commands(self) -> int:
        [(count,)] = self.ask("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database")
        return int(count)

    def disconnect_all(self) -> int:
        others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        return len(self.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))


class BeanstalkBroker(Broker):
    """Its server keeps what it has answered, the shared one too; where a connection breaks, its leases are lost."""

    settle_calls = r"(?m)^(delete|release|bury) \d+"
    """What settles is also what ends a job that was copied."""

    fetch_calls = "(?m)^reserve"

    lasts = TTR

    server: BeanstalkServer

    @classmethod
    def on_shared_server(cls) -> Self:
        return cls(shared_beanstalk())

    @classmethod
    def on_its_own(cls, folder: Path) -> Self:
        return cls(BeanstalkServer(folder, binlog=True), shared=False)

    def url_at(self, host: str, port: int) -> str:
        return f"beanstalk://{host}:{port}?tube_prefix={self.place}.&ttr={self.lasts:g}"

    def commands(self) -> int:
        with self.server.client() as client:
            return sum(int(count) for name, count in client.stats().items() if name.startswith("cmd-"))  # type: ignore[call-overload]

    def disconnect_all(self) -> int:
        """It has no command for that: it is started again."""
        with self.server.client() as client:
            closed = int(client.stats()["current-connections"]) - 1
        self.server.restart()
        return closed


class ClusterBroker(Broker):
    """Three masters. `server` is the one that holds the queue `default`; kill, stop and start that one.

    Nodes name each other by their own addresses, so no proxy stands between them and who knows one of them.
    """

    settle_calls = RedisBroker.settle_calls
    fetch_calls = RedisBroker.fetch_calls

    server: ClusterNode

    def __init__(self, cluster: RedisCluster, *, shared: bool = True) -> None:
        super().__init__(cluster.holder(key_slot(b"{default}")), shared=shared)
        self.cluster = cluster

    @classmethod
    def on_shared_server(cls) -> Self:
        return cls(shared_redis_cluster())

    @classmethod
    def on_its_own(cls, folder: Path) -> Self:
        return cls(RedisCluster(folder, config=DURABLE_REDIS), shared=False)

    @property
    def url(self) -> str:
        return f"{self.cluster.url}?prefix={self.place}"

    def url_at(self, host: str, port: int) -> str:
        """By way of one node, which names the others."""
        return f"redis+cluster://{host}:{port}?prefix={self.place}"

    def host(self) -> Host:
        raise AssertionError("a proxy does not reach the nodes of a cluster: kill, stop or pause `server`")

    def is_whole(self) -> bool:
        """Whether every node takes calls, and knows the holder of each slot."""
        return all(node.is_ready(len(self.cluster.nodes)) for node in self.cluster.nodes)

    def bring_back(self) -> None:
        super().bring_back()
        wait_until(self.is_whole, what="the cluster is whole")

    def commands(self) -> int:
        return sum(int(self._stats(node)["total_commands_processed"]) for node in self.cluster.masters)

    def disconnect_all(self) -> int:
        return sum(node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") for node in self.cluster.masters)

    def end(self) -> None:
        super().end()
        if not self._shared:
            self.cluster.close()

    def _stats(self, node: ClusterNode) -> dict[str, str]:
        lines = node.ask("INFO", "stats").decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


BROKERS: dict[str, type[Broker]] = {
    "redis": RedisBroker,
    "redis-cluster": ClusterBroker,
    "postgres": PostgresBroker,
    "beanstalk": BeanstalkBroker,
}

USUAL = ("redis", "postgres")
"""What can do all that a pool may ask for, and a test may look at."""


def kind_of(name: str) -> type[Broker]:
    if name != "servicebus":
        return BROKERS[name]
    from support.poolrig_servicebus import ServiceBusBroker  # brings the SDK, which takes half a second to import

    return ServiceBusBroker
