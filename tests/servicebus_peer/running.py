"""A broker and its control port, run until they are told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from servicebus_peer.broker import Broker
from servicebus_peer.control_port import ControlPort
from servicebus_peer.orders import Orders
from servicebus_peer.settings import Settings


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[Broker, int]]:
    """The broker, listening, and the port for orders; both are stopped at the end."""
    broker = Broker(settings)
    control = ControlPort(Orders(broker))
    try:
        await broker.listen()
        await control.listen()
        yield broker, control.port
    finally:
        await control.stop()
        await broker.stop()
        await asyncio.sleep(0)  # for the transports' last callbacks
