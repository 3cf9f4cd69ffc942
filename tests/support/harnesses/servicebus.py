"""Harnesses of the Service Bus backend: a peer whose clock is turned, or a real namespace where one is named.

With `JOBPOOL_TEST_SERVICEBUS` the tests run on what its connection string leads to: a namespace, or the official
emulator. `docs/contributing.md` says which queues it must have. Nobody turns a clock there: short times are waited for,
and a test that needs longer ones is skipped, saying so.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, Verb
from jobpool.clock import ManualClock
from jobpool_backends.servicebus import ServiceBusBackend
from support.harnesses.base import Harness, Opener, TurnedClock
from support.peers import (
    LOCK,
    QUEUES,
    SharedNamespace,
    empty_by,
    empty_turned,
    live_peer,
    shared_hub,
    turned_hub,
    turned_peer,
)
from support.waiting import wait_until

ADDRESS = "JOBPOOL_TEST_SERVICEBUS"
"""The environment variable."""

REAL_LOCK = 5.0
"""LockDuration, in seconds, of the queues of a real namespace: the service's shortest."""

LONGEST_WAIT = REAL_LOCK + 1.0
"""Seconds that a test is given on a real namespace, instead of turning a clock."""


class PeerHarness(TurnedClock):
    """A client is a backend of its own over connections that all tests of the process share."""

    capabilities = ServiceBusBackend.capabilities
    tick = 0.001

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._peer = turned_peer()
        empty_turned()
        self.clock = ManualClock(wall=self._peer.control.now())

    def connect(self, **options: Any) -> QueueBackend:
        if options:
            return ServiceBusBackend.from_url(self._peer.connection_string, clock=self.clock, **options)
        return ServiceBusBackend(SharedNamespace(turned_hub()), clock=self.clock)

    def opener(self) -> Opener:
        peer = live_peer()
        empty_by(peer.control)
        return partial(open_live, peer.connection_string)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._peer.control.turn(seconds)

    def set_clock(self, seconds: float) -> None:
        self.clock.set_wall(seconds)
        self._peer.control.set_clock(seconds)

    def lasts(self, ttl: float) -> float:
        del ttl  # the queue says
        return LOCK


class NamespaceHarness(Harness):
    """On the machine's clock, with connections of each test's own: an emulator takes few at a time.

    Its queues are emptied before the first test and after each: no other work may be in them.
    """

    capabilities = ServiceBusBackend.capabilities
    tick = 2.5  # the first call on a queue connects, which takes a second

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        empty_namespace()

    def connect(self, **options: Any) -> QueueBackend:
        return open_namespace(**options)

    def opener(self) -> Opener:
        return open_namespace

    def advance(self, seconds: float) -> None:
        if seconds > LONGEST_WAIT:
            pytest.skip(f"would have to wait for {seconds:g} s: nobody turns the clock of a real namespace")
        time.sleep(max(0.0, seconds))

    def set_clock(self, seconds: float) -> None:
        pytest.skip(f"would set the broker's clock by {seconds:g} s: nobody can at a real namespace")

    def now(self) -> float:
        return time.time()

    def lasts(self, ttl: float) -> float:
        del ttl  # the queue says
        return REAL_LOCK

    def close(self) -> None:
        clients = [client for client in self._opened if isinstance(client, ServiceBusBackend)]
        named = {queue for client in clients for queue in client.namespace.named_queues()}
        super().close()
        for queue in sorted(named & {*QUEUES}):
            drain(queue)


def open_live(address: str) -> QueueBackend:
    """A client on the machine's clock, over the connections that this process has already."""
    return ServiceBusBackend(SharedNamespace(shared_hub(address)))


def open_namespace(**options: Any) -> ServiceBusBackend:
    """A client of the namespace that the environment names."""
    return ServiceBusBackend.from_url(os.environ[ADDRESS], **{"lock": REAL_LOCK, **options})


@cache
def empty_namespace() -> None:
    """What others have left there."""
    for queue in QUEUES:
        drain(queue)


def drain(queue: str) -> None:
    """Delete what is in a queue, and what is leased as soon as it is not."""

    def is_empty() -> bool:
        stats = backend.stats(queue)
        if stats.pending or stats.dead:
            backend.bulk(MessageFilter(queue=queue), Verb.DELETE)
            return False
        return True

    with closing(open_namespace()) as backend:
        wait_until(is_empty, 10 * REAL_LOCK, f"an empty queue {queue}")


ServiceBusHarness: type[Harness] = NamespaceHarness if ADDRESS in os.environ else PeerHarness
