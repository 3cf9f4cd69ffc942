"""Harnesses of the Service Bus backend: a peer whose clock is turned, or a real namespace where one is named.

With `JOBPOOL_TEST_SERVICEBUS` the tests run on what its connection string leads to: a namespace, or the official
emulator. `docs/testing.md` says which queues it must have. Nobody turns a clock there: short times are waited for, and
a test that needs longer ones is skipped, saying so.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobpool.backend import MessageFilter, QueueBackend, Verb
from jobpool.clock import ManualClock
from jobpool_backends.servicebus import ServiceBusBackend
from support.harnesses.base import Harness, Opener, TurnedClock
from support.peers import LOCK, QUEUES, empty, empty_by, live_peer, shared_hub, turned_peer

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
        empty(self._peer)
        self.clock = ManualClock(wall=self._peer.control.now())

    def connect(self, **options: Any) -> QueueBackend:
        address = self._peer.connection_string
        if options:
            return ServiceBusBackend.from_url(address, clock=self.clock, **options)
        return ServiceBusBackend(shared_hub(address), clock=self.clock, owns=False)

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
    """On the machine's clock. The queues are drained before each test: no other work may be in them."""

    capabilities = ServiceBusBackend.capabilities
    tick = 0.5

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._address = os.environ[ADDRESS]
        drain(ServiceBusBackend(shared_hub(self._address), owns=False))

    def connect(self, **options: Any) -> QueueBackend:
        if options:
            return ServiceBusBackend.from_url(self._address, **options)
        return open_live(self._address)

    def opener(self) -> Opener:
        return partial(open_live, self._address)

    def advance(self, seconds: float) -> None:
        if seconds > LONGEST_WAIT:
            pytest.skip(f"would have to wait for {seconds:g} s: the clock of a real namespace is not turned")
        time.sleep(seconds)

    def set_clock(self, seconds: float) -> None:
        pytest.skip(f"would set the broker's clock by {seconds:g} s: at a real namespace nobody can")

    def now(self) -> float:
        return time.time()

    def lasts(self, ttl: float) -> float:
        del ttl  # the queue says
        return REAL_LOCK


def open_live(address: str) -> QueueBackend:
    """A client on the machine's clock, over the connections that this process has already."""
    return ServiceBusBackend(shared_hub(address), owns=False)


def drain(backend: QueueBackend) -> None:
    """Delete what is in the queues of a real namespace."""
    for queue in QUEUES:
        while backend.bulk(MessageFilter(queue=queue), Verb.DELETE):
            pass


ServiceBusHarness: type[Harness] = NamespaceHarness if ADDRESS in os.environ else PeerHarness
