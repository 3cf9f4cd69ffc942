"""The broker: its queues, its listening socket, its connections. Used on one event loop only."""

from __future__ import annotations

import asyncio

from servicebus_peer import errors
from servicebus_peer.cbs import NODE as CBS
from servicebus_peer.clock import Clock
from servicebus_peer.connection import Connection
from servicebus_peer.consumers import Consumers
from servicebus_peer.faults import Faults
from servicebus_peer.links import Link
from servicebus_peer.management import NODE as MANAGEMENT
from servicebus_peer.namespace import Namespace
from servicebus_peer.settings import Settings
from servicebus_peer.store import Store

HOST = "127.0.0.1"
CLOSED = "The connection was inactive for more than the allowed time."
DETACHED = "The link is force detached by the broker. Idle timeout: 00:10:00."
LIMIT = 30.0
"""Seconds for connections to end."""


class Broker:
    """Made on the event loop that it runs on.

    Attributes:
        port: Where it listens, or has listened; 0 before `listen`.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.port = settings.port
        self.clock = Clock(settings.standing_clock)
        self.faults = Faults()
        self.connections: set[Connection] = set()
        self._consumers: dict[Store, Consumers] = {}
        self.namespace = Namespace(self.clock, settings.auto_create, self._serve)
        self._server: asyncio.Server | None = None

    # --- listening ----------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def listen(self) -> None:
        """Take connections, always on the same port."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: Connection(self), HOST, self.port, backlog=512)
            self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Close the listening socket: the machine refuses new connections. Those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        """Refuse, reset every connection, and wait for their ends."""
        self.refuse()
        self.drop_connections()
        await self._gone()
        for consumers in self._consumers.values():
            consumers.cancel()

    async def restart(self, keep_locks: bool) -> None:
        """Stop and listen again; the messages stay, and their locks if `keep_locks`."""
        self.refuse()
        self.drop_connections()
        await self._gone()
        if not keep_locks:
            for store in self.namespace.stores():
                store.release_locks()
        await self.listen()

    async def _gone(self) -> None:
        give_up = asyncio.get_running_loop().time() + LIMIT
        while self.connections and asyncio.get_running_loop().time() < give_up:
            await asyncio.sleep(0.001)

    # --- queues and time ----------------------------------------------------------------------------

    def consumers(self, store: Store) -> Consumers:
        """Who waits for its messages."""
        return self._consumers[store]

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages, and detach the links to it."""
        queue = self.namespace.delete(name)
        for store in (queue.store, queue.dead_letters):
            self._consumers.pop(store).cancel()
            store.listener = None
        for link in self.links():
            if link.address.lower().partition("/$")[0] == queue.name.lower():
                link.detach(errors.NOT_FOUND, f"The messaging entity '{queue.name}' has been deleted.")

    def turn(self, seconds: float) -> None:
        """Move the clock ahead; what becomes due happens before this returns."""
        self.clock.turn(seconds)
        self._advance()

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock on, or back below 0."""
        self.clock.set_wall(seconds)
        self._advance()

    # --- faults of the network; each returns how many it hit ------------------------------------------

    def drop_connections(self) -> int:
        """TCP resets."""
        dropped = list(self.connections)
        for connection in dropped:
            connection.abort()
        return len(dropped)

    def close_connections(self) -> int:
        """AMQP's own way to end them, with the error of the service."""
        closed = list(self.connections)
        for connection in closed:
            connection.close(errors.CONNECTION_FORCED, CLOSED)
        return len(closed)

    def detach_links(self, match: str, *, management: bool, cbs: bool) -> int:
        """Of addresses that contain `match`; those of $management and of $cbs only when they are asked for."""
        detached = [link for link in self.links() if _is_meant(link.address.lower(), match.lower(), management, cbs)]
        for link in detached:
            link.detach(errors.DETACH_FORCED, DETACHED)
        return len(detached)

    def stall(self) -> None:
        """Let nothing pass, on any connection, and close none."""
        self.faults.stalled = True

    def resume(self, keep: bool) -> None:
        """End a stall; see `Connection.resume`."""
        if self.faults.stalled:
            self.faults.stalled = False
            for connection in list(self.connections):
                connection.resume(keep)

    async def heal(self) -> None:
        """End every fault that was asked for; what a stall held goes on its way."""
        self.resume(keep=True)
        self.faults = Faults()
        await self.listen()

    def expire_locks(self, name: str) -> int:
        """Of this queue and its sub-queue; "" = of all."""
        stores = self.namespace.stores() if not name else [self.namespace.store(name)]
        return sum(store.expire_locks() for store in stores)

    def links(self) -> list[Link]:
        """All that are attached."""
        return [
            link
            for connection in self.connections
            for session in connection.sessions.values()
            for link in session.links.values()
            if not link.closed
        ]

    def _serve(self, store: Store) -> None:
        self._consumers[store] = Consumers(store, self.clock)

    def _advance(self) -> None:
        for consumers in self._consumers.values():
            consumers.advance()


def _is_meant(address: str, match: str, management: bool, cbs: bool) -> bool:
    if address == CBS:
        return cbs
    return match in address and (management or not address.endswith(MANAGEMENT))
