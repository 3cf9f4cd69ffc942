"""What a backend must offer to be tested: a harness.

A harness owns one store, empty at the start. `open` gives any number of clients of it. Time moves when `advance` is
called: by turning a manual clock, together with the broker's own where it has one, or else by really waiting.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Capabilities, NewMessage, Ticket
from jobpool.clock import ManualClock
from support.apart import context

Opener = Callable[[], QueueBackend]

MOST = 8
"""In a crowd."""


class Harness(ABC):
    """One empty store.

    Attributes:
        capabilities: Of the backend; tests are left out by its fields and by `without`.
        without: The promises that the contract leaves to it, and it does not keep: `edits`, `dead_caps`.
        tick: The shortest time, in seconds, that `advance` can tell apart.
        folder: A private directory.
    """

    capabilities: ClassVar[Capabilities]
    without: ClassVar[tuple[str, ...]] = ()
    tick: ClassVar[float] = 1e-6

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[QueueBackend] = []

    @abstractmethod
    def connect(self, **options: Any) -> QueueBackend:
        """A client of the store, on the harness's clock; options as its URL takes them."""

    @abstractmethod
    def opener(self) -> Opener:
        """Opens clients of one more store, on the machine's clock; picklable where the store is shared by processes."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let time pass."""

    @abstractmethod
    def set_clock(self, seconds: float) -> None:
        """Somebody sets the broker's wall clock, `seconds` on, or back below 0."""

    @abstractmethod
    def now(self) -> float:
        """Unix time on the broker's clock."""

    def open(self, **options: Any) -> QueueBackend:
        """A client of the store; closed at the end of the test. With options, the only one of its test."""
        return self.keep(self.connect(**options))

    def own_connection(self, *, autocommit: bool = False) -> Any:
        """A connection of an application's own to the store's database; closed by whoever asked."""
        raise NotImplementedError(f"{type(self).__name__} has no transactions")

    def ack_within(self, connection: Any, ticket: Ticket, messages: Sequence[NewMessage] = ()) -> Callable[[], bool]:
        """What a handler's ack of its own message does, on such a connection."""
        acked: Callable[[], bool] = resolve_name(str(ticket["ack"]))(connection, ticket, messages)
        return acked

    def lasts(self, ttl: float) -> float:
        """Seconds that a lease taken for `ttl` seconds really lasts: more than `ttl` where it cannot be chosen."""
        return ttl

    def delayed(self, delay: float) -> float:
        """Seconds that a message enqueued with this delay is really delayed: rounded up to what the broker can tell."""
        unit = self.capabilities.delay_resolution
        return math.ceil(delay / unit) * unit if unit > 1e-6 else delay

    def expire_leases(self, ttl: float) -> None:
        """Let the leases end that were taken for `ttl` seconds just now."""
        self.advance(self.lasts(ttl))

    def crowd(self, opener: Opener, work: Callable[..., Any], count: int) -> list[Any]:
        """Do `work(backend, number)` `count` times at once, as far apart as the backend allows: in processes."""
        assert count <= MOST, "the others would wait for these"
        return list(_processes().map(partial(run, opener, work), range(count)))

    def close(self) -> None:
        for backend in self._opened:
            backend.close()

    def keep(self, backend: QueueBackend) -> QueueBackend:
        """Close this client at the end of the test."""
        self._opened.append(backend)
        return backend


def run(opener: Opener, work: Callable[..., Any], number: int) -> Any:
    """What one of a crowd does."""
    backend = opener()
    try:
        return work(backend, number)
    finally:
        backend.close()


@cache
def _processes() -> ProcessPoolExecutor:
    """A crowd for many tests: to start a process takes far longer than what most of them let it do."""
    return ProcessPoolExecutor(MOST, mp_context=context())


def dismiss_crowd() -> None:
    """End the processes of this test process's crowds. The next crowd has new ones."""
    if _processes.cache_info().currsize:
        _processes().shutdown()
        _processes.cache_clear()


class TurnedClock(Harness):
    """A harness of a backend that takes a clock: it tells the machine's times, and for an embedded backend all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clock = ManualClock()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.show(self.clock.wall())

    def set_clock(self, seconds: float) -> None:
        self.clock.set_wall(seconds)
        self.show(self.clock.wall())

    def show(self, wall: float) -> None:
        """Have a broker with a clock of its own show this Unix time."""

    def now(self) -> float:
        return self.clock.wall()
