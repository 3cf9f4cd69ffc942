"""Many jobs, many deaths and many broken connections leave nothing behind in the programs of a pool (row 23).

With POOLTEST_FULL=1 it is 100,000 jobs, 2,000 deaths and 500 broken connections, which takes some minutes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.faultmoves import Figure, opened_late, start_on, stop_all
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child
from support.poolrig_brokers import Broker
from support.seeds import printed_seed
from support.waiting import wait_until

from jobpool_torture.processes import descriptors

FULL = bool(os.environ.get("POOLTEST_FULL"))
MOST_GROWTH = 8 << 20 if FULL else 3 << 20
"""Bytes of a program's own memory: what allocators keep. 100 bytes lost a job are more than that in the full form."""

IDLE = 3
"""Connections that are kept for the next call beyond those before: as many as threads ever asked at the same time."""

AHEAD = 1000
"""Messages that wait at most, so that the broker is not what the test measures."""


@dataclass(frozen=True, slots=True)
class Amount:
    jobs: int
    deaths: int
    drops: int

    def steps(self, rng: random.Random) -> Iterator[str]:
        """What happens while the jobs run, evenly mixed."""
        steps = ["death"] * self.deaths + ["drop"] * self.drops
        rng.shuffle(steps)
        return iter(steps)


AMOUNT = Amount(100_000, 2_000, 500) if FULL else Amount(1_200, 24, 6)
UNHARMED = Amount(100, 0, 0)
"""After it every connection is there; one that was cut is opened again when it is needed."""

WARM_UP = Amount(400, 8, 3)


@dataclass(frozen=True, slots=True)
class Held:
    """What the master and the fork server of one pool hold.

    Attributes:
        kinds: Descriptors, by what they are.
        own: Bytes of memory that is theirs alone; of the master, and of the fork server.
        shared: Bytes of shared memory that the master has touched.
    """

    kinds: Counter[str]
    own: tuple[int, int]
    shared: int


def held_by(pool: PoolProcess) -> Held:
    [server] = pool.fork_servers()
    kinds = descriptors(pool.pid) + Counter({f"fork server: {kind}": n for kind, n in descriptors(server).items()})
    return Held(kinds, (memory(pool.pid, "RssAnon"), memory(server, "RssAnon")), memory(pool.pid, "RssShmem"))


def memory(pid: int, kind: str) -> int:
    """Bytes."""
    [kibibytes] = re.findall(rf"^{kind}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kibibytes) * 1024


def maps_of_posix_shared_memory(rig: Rig) -> list[str]:
    """What any process of the rig has mapped from /dev/shm."""
    lines = [line for pid in rig.processes() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [line for line in lines if "/dev/shm" in line]


def go_through(rig: Rig, broker: Broker, pools: list[PoolProcess], amount: Amount, rng: random.Random) -> None:
    """Let the pools run the jobs, and their children die and their connections break meanwhile."""
    steps = amount.steps(rng)
    hosts = itertools.cycle(broker.hosts)
    every = amount.jobs // (amount.deaths + amount.drops + 1)
    for _ in range(0, amount.jobs, every):
        rig.enqueue_many("work", [{}] * every)
        wait_until(lambda: rig.stats().pending < AHEAD, LIMIT, "the pools follow")
        match next(steps, ""):
            case "death":
                wait_until(lambda: kill_one(rng.choice(pools), rng), LIMIT, "a child to kill")
            case "drop":
                next(hosts).proxy.cut()
    rig.wait_drained(120.0)


def kill_one(pool: PoolProcess, rng: random.Random) -> bool:
    children = list(pool.slots().values()) if pool.ready() else []
    return bool(children) and kill_child(pool, rng.choice(children))


@pytest.mark.row(23)
@pytest.mark.on("redis", "postgres")
def test_nothing_is_left_of_jobs_deaths_and_broken_connections(rig: Rig, broker: Broker, figure: Figure) -> None:
    rng = random.Random(printed_seed())
    pools = start_on([broker.host() for _ in range(2)], rig, "--max-crashes", "0")
    go_through(rig, broker, pools, UNHARMED, rng)
    connected = [held_by(pool).kinds for pool in pools]
    go_through(rig, broker, pools, WARM_UP, rng)
    files = settled(rig, pools)
    before = [held_by(pool) for pool in pools]

    go_through(rig, broker, pools, AMOUNT, rng)

    assert settled(rig, pools) == files, "the runtime directory"
    assert not maps_of_posix_shared_memory(rig)
    for pool, was, most in zip(pools, before, connected, strict=True):
        allowed = (was.kinds | most) + Counter(socket=IDLE) + opened_late(pool)
        with contextlib.suppress(AssertionError):  # what is asserted below says more
            wait_until(lambda p=pool, a=allowed: held_by(p).kinds <= a)  # type: ignore[misc]
        now = held_by(pool)
        more = now.kinds - allowed
        assert not more, more
        figure("descriptors", now.kinds.total() - was.kinds.total(), "more")
        figure("memory of the master", (now.own[0] - was.own[0]) / 2**20, "MiB more")
        figure("memory of the fork server", (now.own[1] - was.own[1]) / 2**20, "MiB more")
        print(pool.name, was, now, sep="\n")
        assert max(now.own[0] - was.own[0], now.own[1] - was.own[1]) <= MOST_GROWTH
        assert now.shared <= was.shared + MOST_GROWTH // 8
    rig.account().assert_clean()
    assert not rig.dead()
    stop_all(rig, pools)
    assert list(rig.runtime.iterdir()) == []


def settled(rig: Rig, pools: list[PoolProcess]) -> list[str]:
    """The names in the runtime directory, once all children are there again."""
    for pool in pools:
        pool.wait_ready(2)
    return sorted(path.name for path in rig.runtime.iterdir())
