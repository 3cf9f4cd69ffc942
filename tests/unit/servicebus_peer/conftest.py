"""One peer for the tests of a file that ask for no other; each has a queue of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servicebus_peer import PeerThread
from support.amqp_client import AmqpClient
from support.servers import fresh_name


@pytest.fixture(scope="module")
def shared() -> Iterator[PeerThread]:
    """It takes every client: what tokens are for has tests of its own."""
    with PeerThread(auth=False) as peer:
        yield peer


@pytest.fixture
def peer(shared: PeerThread) -> Iterator[PeerThread]:
    """The shared one; the faults of a test end with it."""
    yield shared
    shared.control.heal()


@pytest.fixture
def queue(peer: PeerThread) -> str:
    """The name of a queue that no other test has: locks of 30 s, three deliveries."""
    name = fresh_name("q")
    peer.control.create_queue(name, lock_duration=30.0, max_delivery_count=3)
    return name


@pytest.fixture
def client(peer: PeerThread) -> Iterator[AmqpClient]:
    with AmqpClient(peer.port) as client:
        yield client
