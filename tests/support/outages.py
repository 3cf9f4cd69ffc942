"""What tests of outages and bad networks share: a producer that insists, ways to part hosts, and a look at the cost."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from jobpool.broker.backend import QueueBackend
from jobpool.errors import BackendUnavailable
from jobpool.master.settle_thread import COUNT_EVERY_S
from jobpool.message.definition import JobDefinition
from jobpool.ops.health import look
from jobpool.telemetry.logs import BURST_WINDOW_S, MAX_BURST_LINES
from jobpool.telemetry.metrics.pages import MISSED
from support.faultmoves import fed, in_time
from support.poolrig import LIMIT, PoolProcess, Rig
from support.poolrig_brokers import Host
from support.stalls import Stalls
from support.waiting import wait_until

T = TypeVar("T")

BACK = 5.0
"""Seconds after the broker, or the way to it, is back within which work goes on."""

OUTAGE = MISSED * COUNT_EVERY_S + 0.5
"""Seconds after the broker's last answer by which health tells."""

IDLE_CPU = 0.03
"""Share of a processor that a master may take while its broker is away."""

NO_ANSWER = "the broker does not answer; trying again until it does"
REFUSES_WRITES = "the broker refuses to write; trying again until it does not"

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
    """What pools did in a time.

    Attributes:
        cpu: Seconds that a master had of a processor, the most of any.
        told: Events of a log and how often they were told, the most of any.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    told: Counter[str] = field(default_factory=Counter)

    def flood(self) -> dict[str, int]:
        """Events that were told more often than thinning lets through, however long a slow machine took over it."""
        most = MAX_BURST_LINES * (1 + math.ceil(self.seconds / BURST_WINDOW_S))
        return {event: times for event, times in self.told.items() if times > most}


@contextmanager
def costing(pools: Sequence[PoolProcess]) -> Iterator[Cost]:
    """The cost of the block, filled in at its end."""
    cost, begun = Cost(), time.monotonic()
    before = [(pool.cpu_seconds(), _told(pool)) for pool in pools]
    yield cost
    for pool, (cpu, told) in zip(pools, before, strict=True):
        cost.cpu = max(cost.cpu, pool.cpu_seconds() - cpu)
        cost.told |= _told(pool) - told
    cost.seconds = time.monotonic() - begun


def _told(pool: PoolProcess) -> Counter[str]:
    return Counter(entry["event"] for entry in pool.log())


def part(host: Host) -> None:
    """No way from there to the broker any more, and the machine knows it."""
    host.proxy.refuse()
    host.proxy.cut()


def complaints(pool: PoolProcess) -> set[str]:
    """The checks of its health that are not well."""
    return {check.name for check in look(pool.note()).checks if not check.ok}


def wait_back(condition: Callable[[], object], what: str, limit: float = BACK) -> float:
    """Wait until it is so; for how long: less than the limit, and what the machine keeps all waiting."""
    return in_time(lambda: wait_until(condition, LIMIT, what), limit, what)


def wait_fetched_after(rig: Rig, moment: float, limit: float = BACK) -> float:
    """Wait until each pool has been given jobs that it asked for after that moment, while there are always some.

    How long after it the last one had them: within the limit, as above. What a pool had leased ahead proves nothing.
    """
    pids = {pool.pid for pool in rig.pools}

    def all_have() -> bool:
        return pids <= {line.pid for line in rig.lines("fetched") if line.since > moment}

    with Stalls() as stalls:
        wait_until(lambda: fed(rig, all_have, 0.01, 50), LIMIT, "each pool fetches again")
    given = [line for line in rig.lines("fetched") if line.since > moment]
    after = max(min(line.at for line in given if line.pid == pid) for pid in pids) - moment
    assert after < limit + stalls.allowance, f"after {after:.2f} s, and {stalls.seconds:.2f} s were the machine's"
    return after


def wait_begun_after(rig: Rig, moment: float, limit: float = BACK) -> float:
    """Wait until a job begins that was brought after that moment; how long after it the first did, as above."""

    def begun() -> list[float]:
        brought = {(line.id, line.fence) for line in rig.lines("fetched") if line.at > moment}
        starts = [line for line in rig.starts() if line.at > moment]  # beanstalkd may give a number once more
        return [line.at for line in starts if (line.id, line.fence) in brought]

    with Stalls() as stalls:
        first = min(wait_until(begun, LIMIT, "work goes on"))
    assert first - moment < limit + stalls.allowance
    return first - moment


def insist(call: Callable[[], T]) -> T:
    """What the call answers, once it does."""
    for _ in range(3):
        try:
            return call()
        except BackendUnavailable:
            continue
    return call()
