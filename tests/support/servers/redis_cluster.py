"""A Redis Cluster on loopback: masters, a replica each if wanted, and slots that move from one to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from jobpool_backends.redis.cluster_connections import SLOTS, Host, read_slots
from support.servers.process import LIMIT, ServerFailed, free_port
from support.servers.redis_server import RedisServer
from support.waiting import wait_until


class ClusterNode(RedisServer):
    """One node, in no cluster yet."""

    name = "redis-node"

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None, *, turned: bool = False) -> None:
        self.bus = free_port()
        own = {
            "cluster-enabled": "yes",
            "cluster-port": str(self.bus),
            "cluster-config-file": str(folder.absolute() / "nodes.conf"),
            # On a turned clock a test leaps over hours, which no node's silence is to be counted for.
            "cluster-node-timeout": "1000000000000" if turned else "1000",
            "cluster-replica-validity-factor": "0",
            "repl-diskless-sync-delay": "0",
        }
        super().__init__(folder, turned=turned, config={**own, **(config or {})})

    @property
    def id(self) -> str:
        """What the cluster calls it."""
        return self.ask("CLUSTER", "MYID").decode()  # type: ignore[no-any-return]

    def info(self) -> dict[str, str]:
        """What it says of the cluster."""
        lines = self.ask("CLUSTER", "INFO").decode().splitlines()
        return dict(line.split(":", 1) for line in lines)

    def owner(self, slot: int) -> Host | None:
        """Who has the slot, as far as this node knows."""
        return read_slots(self.ask("CLUSTER", "SLOTS"), self.host)[slot]

    def is_ready(self, nodes: int) -> bool:
        """Whether it knows so many nodes and the holder of each slot, and takes calls."""
        info = self.info()
        # Without cluster-require-full-coverage the state is "ok" before it has heard of the others' slots.
        seen = (info["cluster_state"], info["cluster_known_nodes"], info["cluster_slots_assigned"])
        return seen == ("ok", str(nodes), str(SLOTS))


class RedisCluster:
    """Masters with an equal share of the slots each; a context manager that closes them.

    Args:
        folder: For all of them; made if it is missing.
        masters: How many.
        replicas: Of each master, none or one.
        config: Directives of every node.
        turned: Their clocks, all alike, stand still until `turn_to` moves them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        masters: int = 3,
        replicas: int = 0,
        config: Mapping[str, str] | None = None,
        turned: bool = False,
    ) -> None:
        self._turned = turned
        self.nodes = [
            ClusterNode(folder / str(number), config, turned=turned) for number in range(masters * (1 + replicas))
        ]
        self.masters, self.replicas = self.nodes[:masters], self.nodes[masters:]
        try:
            self._share_slots()
            self._meet()
            for master, replica in zip(self.masters, self.replicas, strict=False):
                replica.ask("CLUSTER", "REPLICATE", master.id)
            self._wait(lambda node: node.is_ready(len(self.nodes)), "the nodes know each other")
            wait_until(
                lambda: all(b"connected" in node.ask("ROLE") for node in self.replicas), LIMIT, "replicas follow"
            )
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'{node.host}:{node.port}' for node in self.masters)}"

    def turn_to(self, moment: float) -> None:
        """Set all clocks of a turned cluster to this Unix time in seconds; flush it before turning back."""
        for node in self.nodes:
            node.turn_to(moment)

    def flush(self) -> None:
        """Remove every key."""
        for node in self.masters:
            node.flush()

    def holder(self, slot: int) -> ClusterNode:
        """The master that held this slot at the start."""
        return self.masters[slot * len(self.masters) // SLOTS]

    def start_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Say that the slot is on its way, and leave its keys where they are."""
        wait_until(lambda: self._agree(slot, source), LIMIT, f"all nodes know who has slot {slot}")
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode, *, most: int = 10_000) -> int:
        """Move up to `most` keys of the slot; how many there were."""
        keys = [key.decode() for key in source.ask("CLUSTER", "GETKEYSINSLOT", slot, most)]
        if keys:
            source.ask("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, target: ClusterNode) -> None:
        """Say to all that the slot has arrived."""
        for node in sorted(self.masters, key=lambda node: node is not target):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Move a slot while clients go on using it."""
        self.start_move(slot, source, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_move(slot, target)

    def close(self) -> None:
        """Stop all of them. Safe to call twice."""
        for node in self.nodes:
            with suppress(ServerFailed):
                node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agree(self, slot: int, owner: ClusterNode) -> bool:
        """Whether what was said of moves before this one has reached all: else their claims collide."""
        owners = {node.owner(slot) for node in self.masters}
        epochs = {node.info()["cluster_current_epoch"] for node in self.masters}
        return owners == {(owner.host, owner.port)} and len(epochs) == 1

    def _share_slots(self) -> None:
        count = len(self.masters)
        edges = [-(-number * SLOTS // count) for number in range(count + 1)]
        for number, master in enumerate(self.masters):
            master.ask("CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1)
        for number, node in enumerate(self.nodes, 1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number)

    def _meet(self) -> None:
        def met(node: ClusterNode) -> bool:
            if node is self.nodes[0]:
                self._introduce()
            return node.info()["cluster_known_nodes"] == str(len(self.nodes))

        self._wait(met, "the nodes meet")

    def _introduce(self) -> None:
        """Tell the first node of those it does not know: after a second without an answer it forgets them again."""
        first, *others = self.nodes
        known = first.ask("CLUSTER", "NODES").decode()
        for node in others:
            if f"{node.host}:{node.port}@" not in known:
                first.ask("CLUSTER", "MEET", node.host, node.port, node.bus)

    def _wait(self, condition: Callable[[ClusterNode], bool], what: str) -> None:
        def all_are() -> bool:
            for node in self.nodes if self._turned else ():
                node.advance(1.0)  # one that has just started takes no calls for two seconds of its own time
            return all(condition(node) for node in self.nodes)

        wait_until(all_are, LIMIT, what)
