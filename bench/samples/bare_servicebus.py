"""azure-servicebus and nothing else: receive in batches and complete, by some receivers at once in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import Any

from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from bench.programs import answer
from bench.samples.preload import Meter, preload
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition

AT_ONCE = 50
"""Messages that a receiver asks for in one call."""

EMPTY_AFTER = 1.0
"""Seconds without a message after which a receiver has nothing more to do; not in the figures."""

SOCKET_TIMEOUT = 0.02
"""Seconds: how soon the SDK hands over a batch that is not full. Its default, 0.2 s, makes the loop slower."""


def run(url: str, receivers: int, jobs: int, broker_pid: int = 0) -> dict[str, Any]:
    """Send what a pool would find there, then receive and complete every message; what that took."""
    queue = f"bare-{secrets.token_hex(4)}"
    with contextlib.closing(open_backend(url)) as backend:
        preload(backend, [JobDefinition("noop", {}, queue=queue)] * jobs)
    return asyncio.run(_measure(url, queue, receivers, jobs, broker_pid))


async def _measure(url: str, queue: str, receivers: int, jobs: int, broker_pid: int) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(ServiceBusClient.from_connection_string(url))
        opened = [
            await stack.enter_async_context(client.get_queue_receiver(queue, socket_timeout=SOCKET_TIMEOUT))
            for _ in range(receivers)
        ]
        meter = Meter(broker_pid)
        ended = await asyncio.gather(*(_work(receiver) for receiver in opened))
        found = meter.read(jobs, max(last for _, last in ended))
    if sum(done for done, _ in ended) != jobs:
        raise RuntimeError(f"{sum(done for done, _ in ended)} of {jobs} messages were there")
    return found


async def _work(receiver: ServiceBusReceiver) -> tuple[int, float]:
    """Return how many, and when the last one was completed."""
    done, last = 0, time.monotonic()
    while messages := await receiver.receive_messages(max_message_count=AT_ONCE, max_wait_time=EMPTY_AFTER):
        for message in messages:
            await receiver.complete_message(message)
        done, last = done + len(messages), time.monotonic()
    return done, last


if __name__ == "__main__":
    answer(run)
