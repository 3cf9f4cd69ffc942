"""The Service Bus peers that many tests share, and the connections to them, which are dear: to open one takes half a
second, whatever the machine.

A test has a peer to itself while it runs: it is emptied before each. A test that stops or disturbs a peer starts one of
its own.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from servicebus_peer import Control, PeerProcess, PeerThread
from servicebus_peer.broker import Broker

from jobpool_backends.servicebus.address import read_address
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.queue_client import QueueClient

MOST_DELIVERIES = 1000
"""So many that the broker makes nothing a dead letter by itself, as the documentation asks for."""

AT_ONCE = 24
"""Connections that are opened at a time: of seventy together, each would wait longer than its own ten seconds."""

LIMIT = 60.0
"""Seconds to open all connections."""

LOCK = 60.0
"""Seconds that locks last: the service's default, and the backend's."""

LARGEST = 2 * 2**20
"""Bytes of a message: a body of 1 MiB, which is what jobpool takes, and what goes with it: the premium tier."""

QUEUES = (
    *("default", "reports", "mails", "failed-payloads", "big-machines", "third", "empty", "nothing"),
    *("a", "b", "c", "d", "e", "q0", "q1", "q2"),
)
"""What the contract's tests name; there is no other queue, and none comes by being named."""


@cache
def turned_peer() -> PeerThread:
    """The peer of this process whose clock stands still; a thread, so that it is emptied and turned at no cost."""
    peer = PeerThread(standing_clock=float(round(time.time())))
    peer.start()
    make_queues(peer.control)
    atexit.register(_if_still_here, os.getpid(), peer.stop)
    return peer


@cache
def live_peer() -> PeerProcess:
    """The peer of this process on the machine's clock; a process of its own."""
    peer = _process("live")
    make_queues(peer.control)
    return peer


@cache
def rig_peer() -> PeerProcess:
    """The one that pools are tried on; it has no queues."""
    return _process("rig")


def make_queues(control: Control, names: Iterable[str] = QUEUES, lock: float = LOCK) -> None:
    """Of the properties that the documentation asks for."""
    for name in names:
        control.create_queue(name, lock_duration=lock, max_delivery_count=MOST_DELIVERIES, max_message_size=LARGEST)


def _process(name: str) -> PeerProcess:
    folder = Path(tempfile.mkdtemp(prefix=f"jobpool-{name}-peer-"))
    atexit.register(_if_still_here, os.getpid(), partial(shutil.rmtree, folder, ignore_errors=True))
    peer = PeerProcess(folder)
    atexit.register(_if_still_here, os.getpid(), peer.close)
    return peer


class SharedNamespace(Namespace):
    """One test's view of connections that others use too: it knows the queues named to it, and closes nothing."""

    def __init__(self, shared: Namespace) -> None:
        self.address = shared.address
        self._shared = shared
        self._named: set[str] = set()
        self.probed: set[str] = set()
        self.closed = False

    def queue(self, name: str) -> QueueClient:
        client = self._shared.queue(name)
        self.probed.discard(name)
        self._named.add(name)
        return client

    def call(self, work: Coroutine[Any, Any, Any], limit: float | None = None) -> Any:
        return self._shared.call(work, limit)

    def named_queues(self) -> list[str]:
        return sorted(self._named - self.probed)

    def close(self) -> None:
        """End the waits, and give back what came for them."""
        self.closed = True
        for client in map(self._shared.queue, self._named):
            client.stop_waiting()
            self._shared.call(client.give_back())


def shared_hub(connection_string: str) -> Namespace:
    """This process's connections to a namespace. They stay open for the next one, so nobody may disturb them."""
    return _hub(connection_string, os.getpid())


@cache
def _hub(connection_string: str, pid: int) -> Namespace:
    namespace = Namespace(read_address(connection_string, {}))
    if multiprocessing.parent_process() is None:  # one of a crowd may just end
        atexit.register(_if_still_here, pid, namespace.close)
    return namespace


@cache
def turned_hub() -> Namespace:
    """The connections to the turned peer, all of them open."""
    namespace = shared_hub(turned_peer().connection_string)
    clients = [namespace.queue(name) for name in QUEUES]
    namespace.call(_open(clients), LIMIT)
    return namespace


async def _open(clients: Iterable[QueueClient]) -> None:
    channels: list[Channel[Any]] = []
    for client in clients:
        channels += [client.sending, client.receivers[0].channel, client.management, client.dead]
    free = asyncio.Semaphore(AT_ONCE)

    async def open_one(channel: Channel[Any]) -> None:
        async with free:
            await channel.run(_nothing, time.monotonic() + LIMIT)

    await asyncio.gather(*map(open_one, channels))


async def _nothing(_: object) -> None:
    """What is done with a connection that is only to be open."""


def empty_turned() -> None:
    """Delete all messages of the turned peer, those too that this process has received without handing them out."""
    let_go(turned_hub())
    turned_peer().call(_purge)


def let_go(namespace: Namespace) -> None:
    """Give back what came while somebody waited."""
    clients = [namespace.queue(name) for name in namespace.named_queues()]
    namespace.call(_give_back(clients))


async def _give_back(clients: Iterable[QueueClient]) -> None:
    for client in clients:
        await client.give_back()


def empty_by(control: Control) -> None:
    """The same, through a control port."""
    for name in control.queues():
        for store in (name, f"{name}/$DeadLetterQueue"):
            control.purge(store)


def _purge(broker: Broker) -> None:
    for store in broker.namespace.stores():
        store.purge()


def _if_still_here(owner: int, end: Callable[[], object]) -> None:
    """In a fork of the process that made it nothing is ended."""
    if os.getpid() == owner:
        end()
