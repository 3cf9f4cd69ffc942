"""The masters of a cluster: a link to each, and which of them holds which slot."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

from jobpool.errors import BackendUnavailable
from jobpool_backends.redis.address import Address
from jobpool_backends.redis.asking import ask_in_turn, open_and_ask
from jobpool_backends.redis.connection import Endpoint
from jobpool_backends.redis.nodelink import NodeLink
from jobpool_backends.redis.slots import Host, read_slots


class Masters:
    """The cluster's table as it was when last asked; any number of threads at once.

    Blocks for the table of slots, when it is not there: for `connect_timeout`, however many nodes are silent.
    """

    def __init__(self, address: Address) -> None:
        self._node = replace(address.node, role="Redis Cluster node")
        self._seeds = tuple(replace(seed, role=self._node.role) for seed in address.seeds)
        self._asked = self._seeds
        self._links: dict[Host, NodeLink] = {}
        self._table: list[Host | None] = []
        self._changing = threading.Lock()
        self._closed = False
        self.title = f"Redis Cluster ({', '.join(seed.name for seed in self._seeds)})"

    def holder(self, slot: int | None) -> NodeLink:
        """Return the master that holds this slot; any master for None.

        Raises:
            BackendUnavailable: No node tells, or none holds the slot, or this was closed.
            ConfigurationError: A node refuses us, or is not in a cluster.
        """
        table = self._table or self._ask()
        host = next(filter(None, table), None) if slot is None else table[slot]
        if host is None:
            self.forget()
            raise BackendUnavailable(
                f"{self.title} has no node for {'any slot' if slot is None else f'slot {slot}'}: bring the missing ones"
                " back (redis-cli --cluster check)"
            )
        return self.at(host)

    def at(self, host: Host) -> NodeLink:
        """Return the link to one node."""
        return self._links.get(host) or self._link_to(host)

    def moved(self, slot: int | None, host: Host) -> NodeLink:
        """Return the link to the node to which a slot was moved; the table says so from now on."""
        table = self._table
        if slot is not None and table:
            table[slot] = host
        return self.at(host)

    def all(self) -> list[NodeLink]:
        """Return every master that holds a slot. Raises as `holder`."""
        table = self._table or self._ask()
        return [self.at(host) for host in sorted({host for host in table if host})]

    def forget(self) -> None:
        """Ask for the table again, before the next call."""
        self._table = []

    def close(self) -> None:
        """Close all links. Safe to call twice."""
        with self._changing:
            self._closed = True
            for link in self._links.values():
                link.close()

    def _ask(self) -> list[Host | None]:
        self._check_open()
        # In any order: a node that was cut off from the others may tell of old times again and again.
        nodes = random.sample(self._asked, len(self._asked))
        _, table = ask_in_turn(nodes, _ask_for_table, f"no node of {self.title} answers")
        masters = {host for host in table if host}
        self._keep(masters)
        known = {(node.host, node.port) for node in self._seeds}
        self._asked = (*self._seeds, *(self._endpoint(host) for host in masters - known))
        self._table = table
        return table

    def _keep(self, masters: set[Host]) -> None:
        """Close the links to nodes that no longer are masters; a call under way ends by itself."""
        with self._changing:
            gone = [self._links.pop(host) for host in self._links.keys() - masters]
        for link in gone:
            link.drop_idle()

    def _link_to(self, host: Host) -> NodeLink:
        with self._changing:
            self._check_open()
            return self._links.setdefault(host, NodeLink(self._endpoint(host)))

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailable(f"the connection to {self.title} was closed: open the backend again")

    def _endpoint(self, host: Host) -> Endpoint:
        return replace(self._node, host=host[0], port=host[1])


def _ask_for_table(node: Endpoint) -> list[Host | None]:
    connection, answer = open_and_ask(node, "CLUSTER", "SLOTS")
    connection.close()
    return read_slots(answer, node.host)
