"""From an address to an open link: to one server, to the master that sentinels name, or to a cluster.

Each new connection asks the sentinels anew, and the server is asked if it agrees. A master that was demoted closes its
connections or answers READONLY; the link then throws all of them away, so the next call comes here. Nobody listens for
announcements: an answer costs a millisecond when a connection breaks, and nothing otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool_backends.redis.address import Address, Kind
from jobpool_backends.redis.cluster_connections import ClusterLink
from jobpool_backends.redis.connection import Connection, Endpoint, ask_in_turn, open_and_ask
from jobpool_backends.redis.connections import Link, ServerLink


class SentinelConnector:
    """The source of connections to the master of one service.

    Blocks for the sentinels `connect_timeout` in all, however many are silent; then for the master as for one server.
    """

    def __init__(self, address: Address) -> None:
        self._sentinels = tuple(replace(seed, role="Redis sentinel") for seed in address.seeds)
        self._node = replace(address.node, role=f"Redis master {address.service}")
        self._service = address.service
        self.title = f"{self._node.role} (sentinels {', '.join(seed.name for seed in address.seeds)})"
        self.timeout = self._node.timeout
        self.is_secure = self._node.is_secure

    def open(self) -> Connection:
        """Return a connection to the master. Raises as a link's calls do."""
        master = self._find_master()
        connection, [role, *_] = open_and_ask(master, "ROLE")
        if role != b"master":
            connection.close()
            raise BackendUnavailable(
                f"{master.title} is a replica still: a failover is under way, or the sentinels are wrong"
            )
        return connection

    def _find_master(self) -> Endpoint:
        sentinels = self._sentinels
        place, master = ask_in_turn(sentinels, self._ask, f"no sentinel names the master of {self._service}")
        self._sentinels = sentinels[place:] + sentinels[:place]  # the one that answered is asked first next time
        return master

    def _ask(self, sentinel: Endpoint) -> Endpoint:
        connection, answer = open_and_ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        connection.close()
        if answer is None:
            raise AccessRefused(
                f"{sentinel.title} knows no service {self._service!r}: write the one of its `sentinel monitor` line"
            )
        host, port = answer
        return replace(self._node, host=host.decode(), port=int(port))


def open_link(address: Address) -> Link:
    """Return a link to what the address names. Does not connect: the first call does."""
    match address.kind:
        case Kind.SENTINEL:
            return ServerLink(SentinelConnector(address))
        case Kind.CLUSTER:
            return ClusterLink(address)
        case Kind.SERVER:
            return ServerLink(address.seeds[0])
