"""The hub: everything that is open towards one namespace. Several backends may share it.

It has one thread with an event loop, one client of the SDK, and a station for each queue that was named. Nothing of it
is made before the first call, and in a process that was forked since, everything is made anew.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusClient

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.channel import CLOSING
from jobpool_backends.servicebus.identity import credential
from jobpool_backends.servicebus.loop import LoopThread
from jobpool_backends.servicebus.sdklog import leave_out
from jobpool_backends.servicebus.station import Station

T = TypeVar("T")

SPARE = 2.0
"""Seconds that a caller waits beyond what the work on the loop was allowed."""

TRY = 5.0
"""Seconds that one attempt of the SDK may take; it is far below the shortest lock."""


class Hub:
    """All connections to a namespace.

    Args:
        address: Of the namespace.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._loop = LoopThread(address.title)
        self._lock = threading.Lock()
        self._client: ServiceBusClient | None = None
        self._stations: dict[str, Station] = {}
        self._closed = False

    def queue(self, name: str) -> Station:
        """Return the station of a queue. No I/O.

        Raises:
            ConfigurationError: The connection string is good for another queue only.
        """
        if self._loop.inherited:
            self._begin_anew()
        station = self._stations.get(name)
        return station or self._make_station(name)

    def call(self, work: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        """Do it on the loop; for callers on other threads. Blocks for `limit` seconds (None = the address's timeout).

        Raises:
            BackendUnavailable: It took longer, or the hub is closed.
            Whatever it raises.
        """
        if self._loop.inherited:
            self._begin_anew()
        if self._closed:
            work.close()
            raise BackendUnavailable(f"{self.address.title}: this backend was closed: open another")
        return self._loop.run(work, (self.address.timeout if limit is None else limit) + SPARE)

    def told(self) -> list[str]:
        """Return the queues that were named so far, sorted."""
        return sorted(self._stations)

    def close(self) -> None:
        """Close all connections and end the thread. Safe to call twice. Blocks for some 15 seconds at most."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not self._loop.inherited and self._client is not None:
            with suppress(BackendUnavailable):  # the rest ends with the thread
                self._loop.run(self._close_all(), CLOSING + SPARE)
            self._loop.stop()

    async def _close_all(self) -> None:
        await asyncio.gather(*(station.close() for station in self._stations.values()), return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _make_station(self, name: str) -> Station:
        only = self.address.only
        if only is not None and only != name:
            raise ConfigurationError(
                f"this connection string is good for queue {only!r} only (EntityPath), not for {name!r}: use one of a"
                " shared access policy of the namespace"
            )
        with self._lock:
            if name not in self._stations:
                self._stations[name] = Station(name, self.address, self._get_client())
            return self._stations[name]

    def _get_client(self) -> ServiceBusClient:
        if self._client is None:
            leave_out()
            options: dict[str, Any] = {"retry_total": 0, "try_timeout": TRY}
            if self.address.connection_string is None:
                self._client = ServiceBusClient(self.address.host, credential(), **options)
            else:
                self._client = ServiceBusClient.from_connection_string(self.address.connection_string, **options)
        return self._client

    def _begin_anew(self) -> None:
        """Start anew in a forked child: the parent's connections are neither used nor closed nor forgotten."""
        self._loop.leave_behind(self._client, self._stations, self._lock)
        self._lock = threading.Lock()
        self._client = None
        self._stations = {}


class Access(Hub):
    """One backend's access to a hub that it may share with others: it knows which queues were named to *it*.

    Args:
        owns: Closing this closes the hub.
    """

    def __init__(self, hub: Hub, *, owns: bool) -> None:
        self.address = hub.address
        self._hub = hub
        self._owns = owns
        self._named: set[str] = set()

    def queue(self, name: str) -> Station:
        station = self._hub.queue(name)
        self._named.add(name)
        return station

    def call(self, work: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        return self._hub.call(work, limit)

    def told(self) -> list[str]:
        return sorted(self._named)

    def close(self) -> None:
        if self._owns:
            self._hub.close()
