"""What tests of outages and bad networks share: a producer that insists, ways to part hosts, and a look at the cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from jobpool.backend import QueueBackend
from jobpool.definition import JobDefinition
from jobpool.errors import BackendUnavailable
from support.poolrig import LIMIT, PoolProcess, Rig
from support.poolrig_brokers import Host
from support.stalls import Stalls
from support.waiting import wait_until

T = TypeVar("T")

BACK = 5.0
"""Seconds after the broker, or the way to it, is back within which work goes on."""

NO_ANSWER = "the broker does not answer; trying again until it does"

INSIST_FOR = 40.0
"""Seconds that a producer tries to enqueue one job."""


class Producer:
    """Enqueues a job every so often with ids of its own, and each again until it has been told that it is there.

    Attributes:
        refused: How many calls were not answered.
        answered: When each job was said to be there: CLOCK_MONOTONIC seconds by its id.
    """

    def __init__(self, rig: Rig, every: float, backend: QueueBackend | None = None, *, most: int = 0) -> None:
        """`backend`: its own way to the broker; the rig's where there is none. `most` jobs; 0 = until it is told."""
        self._rig = rig
        self._every = every
        self._backend = backend or rig.backend
        self._most = most
        self._stop = threading.Event()
        self.refused = 0
        self.answered: dict[str, float] = {}

    @contextmanager
    def running(self) -> Iterator[Producer]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def run(self) -> None:
        number = 0
        while number != (self._most or -1) and not self._stop.wait(self._every):
            number += 1
            self._enqueue(JobDefinition("work", {"seconds": 0.01}, identifier=f"given-{number}"))

    def _enqueue(self, job: JobDefinition) -> None:
        give_up = time.monotonic() + INSIST_FOR
        while time.monotonic() < give_up:
            try:
                ident = self._backend.enqueue(job)
            except BackendUnavailable:
                self.refused += 1
                self._stop.wait(self._every)
            else:
                self._rig.enqueued.add(ident)
                self.answered[ident] = time.monotonic()
                return


@dataclass
class Cost:
    """What pools did in a time: seconds of their masters' processors, and lines of their logs; the most of any."""

    seconds: float = 0.0
    cpu: float = 0.0
    lines: int = 0


@contextmanager
def costing(pools: Sequence[PoolProcess]) -> Iterator[Cost]:
    """The cost of the block, filled in at its end."""
    cost, begun = Cost(), time.monotonic()
    before = [(pool.cpu_seconds(), len(pool.log_lines())) for pool in pools]
    yield cost
    cost.seconds = time.monotonic() - begun
    cost.cpu = max(pool.cpu_seconds() - cpu for pool, (cpu, _) in zip(pools, before, strict=True))
    cost.lines = max(len(pool.log_lines()) - lines for pool, (_, lines) in zip(pools, before, strict=True))


def part(host: Host) -> None:
    """No way from there to the broker any more, and the machine knows it."""
    host.proxy.refuse()
    host.proxy.cut()


def wait_one_more(rig: Rig, limit: float = BACK) -> None:
    """Wait until one more job has ended, or none is left: within the limit, and what the machine keeps all waiting."""
    ended, begun = len(rig.ends()), time.monotonic()
    with Stalls() as stalls:
        wait_until(lambda: len(rig.ends()) > ended or rig.stats().pending == 0, LIMIT, "one more has ended")
    assert time.monotonic() - begun < limit + stalls.seconds


def wait_begun_after(rig: Rig, moment: float, limit: float = BACK) -> float:
    """Wait until a job begins after that moment; how long after it the first did: within the limit, as above."""
    with Stalls() as stalls:
        wait_until(lambda: any(line.at > moment for line in rig.starts()), LIMIT, "work goes on")
    after = min(line.at for line in rig.starts() if line.at > moment) - moment
    assert after < limit + stalls.seconds
    return after


def insist(call: Callable[[], T]) -> T:
    """What the call answers, once it does."""
    for _ in range(3):
        try:
            return call()
        except BackendUnavailable:
            continue
    return call()
