"""The control port: on loopback, an order a line, an answer a line, both JSON.

    {"order": "counts", "name": "jobs"}
    {"ok": {"ready": 1, ...}}

and {"error": "..."} for what could not be done.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from servicebus_peer.broker import HOST
from servicebus_peer.errors import AmqpError
from servicebus_peer.orders import Orders


class ControlPort:
    """Serves orders, one after the other on each connection."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def listen(self) -> None:
        """On a free port."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(OSError, ValueError, asyncio.CancelledError):  # a line beyond the limit is a ValueError
                while line := await reader.readline():
                    writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                    await writer.drain()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"ok": await self._orders.carry_out(json.loads(line))}
        except (AmqpError, ValueError, TypeError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
