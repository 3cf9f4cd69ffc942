"""A peer in this process, on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Self, TypeVar

from servicebus_peer.broker import HOST, Broker
from servicebus_peer.control import Control
from servicebus_peer.running import running
from servicebus_peer.settings import Settings, connection_string

T = TypeVar("T")

LIMIT = 30.0
"""Seconds to start, to stop, and for a call."""

TRIES = 5
"""How many ports are tried before a start fails."""


class PeerThread:
    """Started by `start`; a context manager that starts and stops it.

    Attributes:
        host: 127.0.0.1.
        port: Of AMQP, 0 before the first start; the same after `stop` and `start`.
        control: Known while it runs.
    """

    def __init__(self, **settings: Any) -> None:
        """`settings`: fields of `Settings`."""
        self.host = HOST
        self._settings = Settings(**settings)
        self.port = self._settings.port
        self.control = Control(HOST, 0)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        return f"sb://{self.host}:{self.port}"

    @property
    def connection_string(self) -> str:
        return connection_string(self.host, self.port)

    def start(self) -> None:
        """Start it and wait until it listens; nothing when it runs. Raises `OSError` when the port is taken."""
        if self._thread is not None:
            return
        for left in reversed(range(1 if self.port else TRIES)):
            try:
                self._start_on(self.port or _free_port())
                return
            except OSError:
                if not left:
                    raise

    def stop(self) -> None:
        """Reset its connections and end it, messages and all; nothing when it does not run."""
        if self._thread is None:
            return
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        thread, self._thread = self._thread, None
        thread.join(LIMIT)
        if thread.is_alive():
            raise RuntimeError(f"the peer on port {self.port} did not end within {LIMIT} s")

    def call(self, function: Callable[[Broker], T]) -> T:
        """`function(broker)`, on the peer's own thread."""

        async def called() -> T:
            assert self._broker is not None
            return function(self._broker)

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(LIMIT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_on(self, port: int) -> None:
        started: Future[int] = Future()
        settings = replace(self._settings, port=port)
        thread = threading.Thread(target=self._run, args=(settings, started), name="servicebus peer", daemon=True)
        thread.start()
        self.control = Control(HOST, started.result(LIMIT))
        self._thread, self.port = thread, port

    def _run(self, settings: Settings, started: Future[int]) -> None:
        asyncio.run(self._serve(settings, started))

    async def _serve(self, settings: Settings, started: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with running(settings) as (self._broker, control):
                started.set_result(control)
                await self._stopping.wait()
        except OSError as error:
            if started.done():
                raise
            started.set_exception(error)


def _free_port() -> int:
    # Imported here for the reason that `servicebus_peer` gives.
    from support.servers.ports import free_port

    return free_port()
