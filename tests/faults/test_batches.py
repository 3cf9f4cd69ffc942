"""Row 46: masters are killed around the settlements that end members of batches, and started again all the while."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from support.faultmoves import Figure, stop_all
from support.poolrig import PoolProcess, Rig
from support.tiers import ALL
from support.waiting import wait_until

from jobpool_torture.ledger import Line
from jobpool_torture.spoiling import ORDERS_FOLDER
from jobpool_torture.tracking import batches
from jobpool_torture.workload import Item, Producer

BATCHES, KILLS = (500, 40) if ALL else (80, 6)
POOLS = 3
LIMIT = 300.0
POINTS = {"before-settle/ack": 8, "after-settle/ack": 8, "before-settle/abandon": 2, "after-settle/abandon": 2}
POINTS |= {"before-reap": 2, "after-reap": 1}
"""Where they are killed → at which call at the latest."""

FLAGS = ("--ttl", "2", "--max-crashes", "4", "--retry", "fixed base=50ms")
MEMBERS: tuple[tuple[Any, ...], ...] = (
    *[("work", "torture.work", {"seconds": 0})] * 4,
    ("flaky", "torture.fail", {"times": 1}, {"max_retries": 5}),
    ("doomed", "torture.fail", {"times": 1000}, {"max_retries": 0}),
    ("crash", "torture.crash", {"how": "SIGKILL", "times": 1}),
    ("follow", "torture.follow", {"jobs": 1}),
)
POISON: tuple[Any, ...] = ("poison", "torture.crash", {"how": "SIGKILL", "times": 1000})
"""Dies of the crash limit, by a reaper."""


def chosen(number: int, rng: random.Random) -> Item:
    """A batch of one to four; every twentieth has poison in it."""
    kinds = [rng.choice(MEMBERS) for _ in range(rng.randint(1, 4))]
    if number % 20 == 0:
        kinds[0] = POISON
    members = [Item(number, 0.0, kind, name, load, options=dict(*more)) for kind, name, load, *more in kinds]
    return Item(number, 0.0, "batch", "torture.tally", {}, members=tuple(members))


class Mortal:
    """Pools on one queue that are killed at a call to the broker each and started again, until there were `KILLS`."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self._rig = rig
        self._points = [rng.choice(list(POINTS)) for _ in range(KILLS)]
        self._points = [f"{point}:{rng.randint(1, POINTS[point])}" for point in self._points]
        (rig.directory / "orders").mkdir()
        self.killed: list[PoolProcess] = []
        self.alive = [self._start() for _ in range(POOLS)]

    def _start(self) -> PoolProcess:
        more: dict[str, Any] = {"FAILPOINT": self._points.pop() if self._points else ""}
        more[ORDERS_FOLDER] = str(self._rig.directory / "orders")
        return self._rig.start_pool(*FLAGS, app="jobpool_torture.handlers", **more)

    def tend(self) -> None:
        for place, pool in enumerate(self.alive):
            if pool.process.poll() is not None:
                assert pool.process.returncode == -signal.SIGKILL, pool.log_path.read_text()[-2000:]
                self.killed.append(pool)
                self.alive[place] = self._start()


@pytest.mark.row(46)
@pytest.mark.on("sqlite", "redis", "postgres")
def test_masters_killed_around_the_last_settlements_of_batches(rig: Rig, figure: Figure) -> None:
    rng = random.Random(17)
    mortal = Mortal(rig, rng)
    producer = Producer(lambda: rig.backend, "default", "ab12", rig.ledger.path)
    producer.start([chosen(number, rng) for number in range(BATCHES)])

    def over() -> bool:
        mortal.tend()
        assert producer.error is None, producer.error
        return not producer.is_busy and rig.stats().pending == 0

    wait_until(over, LIMIT, "all batches have ended")
    producer.finish(0.0)
    for pool in mortal.alive:  # one that has just begun must not be stopped before it can be
        wait_until(lambda pool=pool: pool.process.poll() is not None or pool.ready(), LIMIT, "it is up")  # type: ignore[misc]
    rig.wait_drained()
    stop_all(rig, [pool for pool in mortal.alive if pool.process.poll() is None])

    lines, kept = rig.lines(), rig.kept()
    assert batches(lines, producer.items, kept) == {}
    rig.account().assert_clean()
    closed = [ident for ident in producer.items if ident.endswith(":on_done")]
    assert len(closed) == BATCHES
    assert {line.id for line in lines if line.event == "told"} >= set(closed), "each has had its callback"
    assert all(rig.backend.batches.get(ident.partition(":")[0]).has_ended for ident in closed)  # type: ignore[union-attr]
    assert len(mortal.killed) >= KILLS / 2
    figure("masters killed", len(mortal.killed), "times")
    figure("of them in a call that ended a batch", sum(map(bool, ended_by(lines, mortal.killed))), "times")


def ended_by(lines: list[Line], killed: list[PoolProcess]) -> Iterator[set[str]]:
    """The batches whose last settlement was the last call of each of these."""
    last: dict[str, Line] = {}
    for line in lines:
        if line.event == "asked" and "m" in line.id and line.verb in ("ack", "abandon"):
            last[line.id.partition("m")[0]] = line
    for pool in killed:
        mine = [line for line in lines if line.pid == pool.pid and line.event == "asked"]
        since = mine[-1].since if mine else -1.0
        yield {batch for batch, line in last.items() if line.pid == pool.pid and line.since == since}
