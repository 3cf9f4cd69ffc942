"""The namespace: all connections to it. Several backends may share them.

It has one thread with an event loop, one client of the SDK, and a queue client for each queue that was named. Nothing
of it is made before the first call, and in a process that was forked since, everything is made anew.
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
from jobpool_backends.servicebus.channel import CLOSE_LIMIT_S
from jobpool_backends.servicebus.identity import credential
from jobpool_backends.servicebus.loop import LoopThread
from jobpool_backends.servicebus.queue_client import QueueClient
from jobpool_backends.servicebus.sdklog import install_log_filter

T = TypeVar("T")

CALL_SPARE_S = 2.0
"""Seconds that a caller waits beyond what the work on the loop was allowed."""

ATTEMPT_LIMIT_S = 5.0
"""Seconds that one attempt of the SDK may take; it is far below the shortest lock."""


class Namespace:
    """All connections to a namespace.

    Args:
        address: Of the namespace.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._loop = LoopThread(address.title)
        self._lock = threading.Lock()
        self._client: ServiceBusClient | None = None
        self._queues: dict[str, QueueClient] = {}
        self._closed = False

    def queue(self, name: str) -> QueueClient:
        """Return the queue_client of a queue. No I/O.

        Raises:
            ConfigurationError: The connection string is good for another queue only.
        """
        if self._loop.inherited:
            self._begin_anew()
        queue_client = self._queues.get(name)
        return queue_client or self._make_queue(name)

    def call(self, work: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        """Do it on the loop; for callers on other threads. Blocks for `limit` seconds (None = the address's timeout).

        Raises:
            BackendUnavailable: It took longer, or the namespace is closed.
            Whatever it raises.
        """
        if self._loop.inherited:
            self._begin_anew()
        if self._closed:
            work.close()
            raise BackendUnavailable(f"{self.address.title}: this backend was closed: open another")
        return self._loop.run(work, (self.address.timeout if limit is None else limit) + CALL_SPARE_S)

    def named_queues(self) -> list[str]:
        """Return the queues that were named so far, sorted."""
        return sorted(self._queues)

    def close(self) -> None:
        """Close all connections and end the thread. Safe to call twice. Blocks for some 15 seconds at most."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not self._loop.inherited and self._client is not None:
            with suppress(BackendUnavailable):  # the rest ends with the thread
                self._loop.run(self._close_all(), CLOSE_LIMIT_S + CALL_SPARE_S)
            self._loop.stop()

    async def _close_all(self) -> None:
        await asyncio.gather(*(queue_client.close() for queue_client in self._queues.values()), return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _make_queue(self, name: str) -> QueueClient:
        only = self.address.only
        if only is not None and only != name:
            raise ConfigurationError(
                f"this connection string is good for queue {only!r} only (EntityPath), not for {name!r}: use one of a"
                " shared access policy of the namespace"
            )
        with self._lock:
            if name not in self._queues:
                self._queues[name] = QueueClient(name, self.address, self._get_client())
            return self._queues[name]

    def _get_client(self) -> ServiceBusClient:
        if self._client is None:
            install_log_filter()
            options: dict[str, Any] = {"retry_total": 0, "try_timeout": ATTEMPT_LIMIT_S}
            if self.address.connection_string is None:
                self._client = ServiceBusClient(self.address.host, credential(), **options)
            else:
                self._client = ServiceBusClient.from_connection_string(self.address.connection_string, **options)
        return self._client

    def _begin_anew(self) -> None:
        """Start anew in a forked child: the parent's connections are neither used nor closed nor forgotten."""
        self._loop.leave_behind(self._client, self._queues, self._lock)
        self._lock = threading.Lock()
        self._client = None
        self._queues = {}


class Access(Namespace):
    """One backend's access to a namespace that it may share with others: it knows which queues were named to *it*.

    Args:
        owns: Closing this closes the namespace.
    """

    def __init__(self, namespace: Namespace, *, owns: bool) -> None:
        self.address = namespace.address
        self._namespace = namespace
        self._owns = owns
        self._named: set[str] = set()

    def queue(self, name: str) -> QueueClient:
        queue_client = self._namespace.queue(name)
        self._named.add(name)
        return queue_client

    def call(self, work: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        return self._namespace.call(work, limit)

    def named_queues(self) -> list[str]:
        return sorted(self._named)

    def close(self) -> None:
        if self._owns:
            self._namespace.close()
