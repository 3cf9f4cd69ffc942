"""A fleet of two pools with its nemesis, for tests that see whether a fault really happened."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool_torture.clocks import PoolClock
from jobpool_torture.fleet import Fleet, Pool
from jobpool_torture.nemesis import Nemesis
from jobpool_torture.network import Proxy, Route, find_route
from jobpool_torture.schedule import Fault
from support.waiting import wait_until, whole_lines

LIMIT = 60.0
"""Seconds: far more than anything here takes on an idle machine."""

APP = '''
import json
import os
import time

import jobpool


@jobpool.handler
def tell(ctx: jobpool.JobContext, seconds: float = 0.0, once: bool = False) -> None:
    """Writes which pool runs it, as which process, and what time it has; then sleeps. `once`: in its first run."""
    told = {"id": ctx.id, "fence": ctx.fence, "pool": os.path.basename(os.environ["JOBPOOL_RUNTIME_DIR"])}
    told |= {"pid": os.getpid(), "wall": time.time(), "mono": time.monotonic()}
    with open(os.environ["TOLD"], "ab", buffering=0) as file:
        file.write(json.dumps(told).encode() + b"\\n")
    if ctx.fence == 1 or not once:
        time.sleep(seconds)
'''


@dataclass
class FleetRig:
    """Two pools on one queue. `url`: of the broker itself; the pools go through `networks` where there are any."""

    directory: Path
    url: str
    fleet: Fleet
    nemesis: Nemesis
    networks: Sequence[Proxy]
    clocks: Sequence[PoolClock]
    backend: QueueBackend
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    def strike(self, kind: str, pool: int = 0, **options: Any) -> str:
        """One fault, now; what the nemesis says of it."""
        return self.nemesis.strike(self.a_fault(kind, pool, **options)).said

    def a_fault(self, kind: str, pool: int = 0, **options: Any) -> Fault:
        return Fault(next(self.numbers), 0.0, kind, pool, **options)

    def pool(self, number: int = 0) -> Pool:
        return self.fleet.pools[number]

    def until(self, condition: Callable[[], Any], what: str = "") -> list[str]:
        """Call `due` until it is so; all that it told."""
        told: list[str] = []

        def there() -> bool:
            told.extend(self.nemesis.due())
            return bool(condition())

        wait_until(there, LIMIT, what)
        return told

    def all_is_over(self) -> bool:
        """Whether no fault is to be undone, and no pool to be started again."""
        waits = [pool for pool in self.fleet.pools if not pool.pid and pool.start_at is not None]
        return not (self.nemesis._pending or waits)

    def enqueue(self, count: int = 1, **payload: Any) -> list[str]:
        return self.backend.enqueue_many([JobDefinition("tell", payload) for _ in range(count)])

    def told(self) -> list[dict[str, Any]]:
        """What the handlers wrote."""
        return [json.loads(line) for line in whole_lines(self.directory / "told")]

    def wait_told_by(self, *names: str) -> dict[str, dict[str, Any]]:
        """Enqueue until each of these pools has run a job that was enqueued from now on; the first of each."""
        before = len(self.told())

        def there() -> bool:
            self.nemesis.due()
            if self.backend.stats("default").pending < 10:
                self.enqueue(20, seconds=0.02)
            return set(names) <= {entry["pool"] for entry in self.told()[before:]}

        wait_until(there, LIMIT, f"jobs were run by {' and '.join(names)}")
        return {name: next(entry for entry in self.told()[before:] if entry["pool"] == name) for name in names}

    def record(self, event: str = "") -> list[dict[str, Any]]:
        """What the nemesis wrote down."""
        entries = [json.loads(line) for line in whole_lines(self.directory / "record")]
        return [entry for entry in entries if event in ("", entry["event"])]

    def assert_healed(self) -> None:
        """Heal: everything runs, nothing is stopped, every pool works, clocks and networks are right."""
        told = self.nemesis.heal(LIMIT)
        assert not [line for line in told if line.endswith("is not up")], told
        assert not self.nemesis.problems
        assert self.all_is_over()
        self.wait_told_by(*(pool.name for pool in self.fleet.pools))


@contextmanager
def fleet_rig(
    directory: Path, url: str, *, moved: bool = False, restart_broker: str = "", ttl: float = 5.0
) -> Iterator[FleetRig]:
    """Two pools, up and ready; gone afterwards, whatever happens.

    Args:
        url: Of the broker; where a proxy can stand before it, each pool has its own.
        moved: With clocks of their own.
        restart_broker: A command, for the nemesis.
        ttl: Seconds of a lease.
    """
    (directory / "app.py").write_text(APP)
    route = find_route(url)
    networks = [Proxy(route.host, route.port) for _ in range(2)] if isinstance(route, Route) else []
    urls = [route.to(proxy.host, proxy.port) for proxy in networks if isinstance(route, Route)] or [url, url]
    own = [PoolClock(directory / f"clock{number}") for number in range(2)] if moved else []
    flags = (
        "-A",
        str(directory / "app.py"),
        "-w",
        "2",
        "--ttl",
        f"{ttl:g}",
        "--stop-grace",
        "5",
        "--log-format",
        "json",
    )
    program = (sys.executable, "-m", "jobpool")
    told = {"TOLD": str(directory / "told"), "PYTHONDONTWRITEBYTECODE": "1"}
    fleet = Fleet(directory, urls, flags, environment=told, clocks=own, program=program)
    nemesis = Nemesis(
        fleet,
        route if isinstance(route, str) else networks,
        own or "these pools have none",
        "they have no user of their own",
        restart_broker,
        orders=directory,
        record=directory / "record",
    )
    backend = open_backend(url)
    try:
        fleet.start()
        assert fleet.wait_ready(LIMIT) == []
        yield FleetRig(directory, url, fleet, nemesis, networks, own, backend)
    finally:
        nemesis.close()
        fleet.kill_all()
        backend.close()
        for network in networks:
            network.close()
