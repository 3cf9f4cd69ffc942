"""The namespace: all connections to it.

It has one thread with an event loop, one client of the SDK, and a queue client for each queue that was named. Nothing
is made before the first call. A forked child has the memory of the parent's loop and connections, but not its thread,
and the sockets are the parent's as well. So the child refuses to use them, and closes none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from azure.core.credentials import AccessToken
from azure.servicebus.aio import ServiceBusClient

from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.channel import CLOSE_LIMIT_S
from jobpool_backends.servicebus.queue_client import QueueClient
from jobpool_backends.shared import OneProcess

# Variables of azure-identity that are secrets by themselves.
CREDENTIAL_VARIABLES = ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD")
LOOP_THREAD_NAME = "jobpool-servicebus"
THREAD_END_LIMIT_S = 5.0
CALL_SPARE_S = 2.0  # time that a caller waits beyond the limit of the work on the loop
ATTEMPT_LIMIT_S = 5.0  # limit of one attempt of the SDK; it is far below the shortest lock

FILTERED_LINES = {
    "azure.servicebus.aio._async_utils": "Handler cleanup did not complete",
    "azure.servicebus.aio._base_handler_async": "Unexpected error occurred",
    "azure.servicebus._pyamqp.aio._connection_async": "Connection closed with error",
    "azure.servicebus._pyamqp.aio._management_operation_async": "Failed to complete management operation",
}
"""By logger, the beginning of lines about breaking connections, which channels recover from and log in one line.

They come each time as warnings, or as errors with a traceback. They are left out for our own thread only.
"""

Worked = TypeVar("Worked")


def credential() -> Any:
    """Return a credential for the SDK. No I/O. Call `require` before."""
    from azure.identity import DefaultAzureCredential  # an extra

    return _OnAThread(DefaultAzureCredential())


def require() -> None:
    """Raise `ConfigurationError` if azure-identity is not installed."""
    try:
        import azure.identity  # noqa: F401 - an extra, and slow to import
    except ImportError as error:
        raise ConfigurationError(
            "servicebus://NAME needs the package 'azure-identity', which is not installed:"
            " pip install 'azure-identity>=1.19,<2', or use a connection string"
        ) from error


class _OnAThread:
    """A blocking credential for a client that awaits it: azure-identity's own needs one more HTTP library.

    The SDK asks for tokens, and leaves the closing to others.
    """

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        token: AccessToken = await asyncio.to_thread(self._blocking.get_token, *scopes, **options)
        return token


def _keeps_log_record(record: logging.LogRecord) -> bool:
    return record.threadName != LOOP_THREAD_NAME or not str(record.msg).startswith(FILTERED_LINES[record.name])


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


class Namespace(OneProcess):
    """All connections to the namespace of an address."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"the connection to {address.title}")
        self.address = address
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: ServiceBusClient | None = None
        self._queues: dict[str, QueueClient] = {}
        self.probed: set[str] = set()  # queues of those that nobody has named

    def queue(self, name: str) -> QueueClient:
        """Return the client of a queue. Raises `ConfigurationError`: the connection string is good for another only."""
        self.check_fork()
        only = self.address.only
        if only is not None and only != name:
            raise ConfigurationError(
                f"this connection string is good for queue {only!r} only (EntityPath), not for {name!r}: use one of a"
                " shared access policy of the namespace"
            )
        with self._lock:
            self.probed.discard(name)
            if name not in self._queues:
                self._queues[name] = QueueClient(name, self.address, self._get_client())
            return self._queues[name]

    def call(self, work: Coroutine[Any, Any, Worked], limit: float | None = None) -> Worked:
        """Do it on the loop, in `limit` seconds and `CALL_SPARE_S`; for callers on other threads.

        None = the address's timeout. Raises BackendUnavailable if that is not enough, and errors of the work.
        """
        try:
            self.check_fork()  # first: a thread of the parent's may have had the lock at the fork
            with self._lock:
                self.check_usable()
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                    self._thread = threading.Thread(target=_run, args=(self._loop,), name=LOOP_THREAD_NAME, daemon=True)
                    self._thread.start()
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except JobpoolError:
            work.close()
            raise
        return self._result(future, self.address.timeout if limit is None else limit)

    def _result(self, future: concurrent.futures.Future[Worked], limit: float) -> Worked:
        limit += CALL_SPARE_S
        try:
            return future.result(limit)
        except concurrent.futures.CancelledError:
            raise BackendUnavailable(f"{self.address.title}: this backend was closed meanwhile") from None
        except TimeoutError:  # ours, or one of the work's own
            raise BackendUnavailable(f"{self.address.title} did not answer within {limit:g} s") from None
        finally:
            future.cancel()  # does nothing to a finished one

    def named_queues(self) -> list[str]:
        """Return the queues that were named so far, in the address or by a call, sorted."""
        return sorted({*self._queues, *filter(None, [self.address.only])} - self.probed)

    def close(self) -> None:
        """Close all connections and end the thread. Safe to call twice. Blocks for some 15 seconds at most."""
        if self.is_inherited:
            return
        with self._lock:
            is_open = not self.closed
            self.closed = True
        if is_open and self._loop is not None and self._thread is not None:
            with suppress(BackendUnavailable):  # the rest ends with the thread
                self._result(asyncio.run_coroutine_threadsafe(self._close_all(), self._loop), CLOSE_LIMIT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(THREAD_END_LIMIT_S)

    async def _close_all(self) -> None:
        await asyncio.gather(*(queue.close() for queue in self._queues.values()), return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _get_client(self) -> ServiceBusClient:
        if self._client is None:
            for name in FILTERED_LINES:
                logging.getLogger(name).addFilter(_keeps_log_record)
            options: dict[str, Any] = {"retry_total": 0, "try_timeout": ATTEMPT_LIMIT_S}
            if self.address.connection_string is None:
                self._client = ServiceBusClient(self.address.host, credential(), **options)
            else:
                self._client = ServiceBusClient.from_connection_string(self.address.connection_string, **options)
        return self._client
