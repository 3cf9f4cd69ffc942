"""The stage for faults: two pools under the witness, each with a network of its own, and their ledger.

All times are read from the ledger, whose lines hold CLOCK_MONOTONIC: how often this process looks does not matter.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.poolrig_brokers import BeanstalkBroker, Broker, Host, PostgresBroker, RedisBroker

from bench.live_pool import wait_for
from bench.plan import Plan
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool_torture import processes
from jobpool_torture.fleet import Fleet, Pool
from jobpool_torture.ledger import LEDGER, Ledger, Line

POOLS = 2
WORKERS = 2
BROKERS: dict[str, type[Broker]] = {"redis": RedisBroker, "postgres": PostgresBroker, "beanstalkd": BeanstalkBroker}


class Stage:
    """Two pools of two children, on one broker.

    Attributes:
        ttl: Seconds, of their leases.
        broker: On a server that may be killed; None on SQLite.
        proxies: Of each pool; none on SQLite.
        pools: Both.
    """

    def __init__(self, directory: Path, broker: str, ttl: float) -> None:
        self.ttl = ttl
        self._life = ExitStack()
        with ExitStack() as undo:
            undo.callback(self.close)
            self._build(directory, broker)
            undo.pop_all()

    def _build(self, directory: Path, broker: str) -> None:
        self.broker: Broker | None = None
        hosts: list[Host] = []
        if kind := BROKERS.get(broker):
            self.broker = kind.on_its_own(directory / "server")
            self._life.callback(self.broker.end)
            hosts = [self.broker.host() for _ in range(POOLS)]
        self.proxies = [host.proxy for host in hosts]
        url = self.broker.url if self.broker else f"sqlite:///{directory}/bench.db"
        urls = [host.url for host in hosts] or [url] * POOLS
        words = ["-A", "jobpool_torture.handlers", "-w", str(WORKERS), "--ttl", f"{self.ttl:g}", "--stop-grace", "1"]
        self._ledger = Ledger(directory / "ledger")
        self._fleet = Fleet(directory, urls, words, environment={LEDGER: str(self._ledger.path)})
        self._backend: QueueBackend = open_backend(url)
        self._life.callback(self._backend.close)
        self.pools: list[Pool] = self._fleet.pools
        self._life.callback(self._end_pools)
        self.start()

    # --- the pools ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start those that do not run, and wait until all children of both are ready."""
        self._fleet.collect()
        self._fleet.start()
        for pool in self.pools:
            self.wait_ready(pool)

    def wait_ready(self, pool: Pool) -> float:
        """Return CLOCK_MONOTONIC when its master said that all children are ready, none of which is dead."""
        wait_for(lambda: pool.is_full(WORKERS) or None, f"{pool.name} is ready")
        return time.monotonic()

    def mend(self) -> None:
        """Undo what a fault has left behind that came to no end: all run, and nothing is to be done."""
        for proxy in self.proxies:
            proxy.restore()
            proxy.drop_replies(0)
        for pid in [pid for pool in self.pools if pool.pid for pid in processes.tree_of(pool.pid)]:
            with suppress(ProcessLookupError):
                self.send(pid, signal.SIGCONT)
        self.start()
        self.drain()

    def pool_of(self, child: int) -> Pool:
        return wait_for(lambda: next((p for p in self.pools if child in p.children()), None), f"the pool of {child}")

    def send(self, pid: int, number: signal.Signals) -> float:
        """Send a signal to a process of a pool; CLOCK_MONOTONIC just before.

        Raises:
            ProcessLookupError: It is none, or none any more.
        """
        at = time.monotonic()
        if not processes.send(pid, number, lambda pid: any(pid in processes.tree_of(pool.pid) for pool in self.pools)):
            raise ProcessLookupError(f"pid {pid} is not a process of these pools")
        return at

    # --- the queue ----------------------------------------------------------------------------------

    def enqueue(self, count: int, seconds: float, timeout: float | None = None) -> list[str]:
        """Enqueue jobs that sleep."""
        job = JobDefinition("torture.work", {"seconds": seconds}, timeout=timeout)
        return self._backend.enqueue_many([job] * count)

    def drain(self) -> None:
        """Wait until nothing is waiting, delayed or leased."""
        wait_for(lambda: self._backend.stats("default").pending == 0 or None, "an empty queue")

    # --- the ledger ---------------------------------------------------------------------------------

    def line(self, event: str, fits: Callable[[Line], bool], after: float = 0.0) -> Line:
        """Return the first such line that was written after that moment, as soon as it is there."""

        def found() -> Line | None:
            lines = self._ledger.read()
            return next((line for line in lines if line.event == event and line.at > after and fits(line)), None)

        return wait_for(found, f"a line {event!r}")

    def started(self, ident: str, fence: int = 1) -> Line:
        """Return when that delivery's handler began."""
        return self.line("start", lambda line: line.id == ident and line.fence >= fence)

    def acked(self, after: float) -> Line:
        """Return the first ack whose call began after that moment, and was accepted."""
        return self.line("settled", lambda line: line.since > after and line.answer == "ok", after)

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """End pools, proxies and server, as far as they were started."""
        self._life.close()

    def _end_pools(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._fleet.kill_all)
            for proxy in self.proxies:
                proxy.restore()
            self._fleet.stop_all(15.0)


@contextmanager
def stage(plan: Plan, broker: str, ttl: float) -> Iterator[Stage]:
    """Yield a stage on `sqlite`, `redis`, `postgres` or `beanstalkd`, gone afterwards. `ttl`: seconds."""
    with plan.scratch() as directory:
        directory.chmod(0o711)  # Postgres has to get to its files
        made = Stage(directory, broker, ttl)
        try:
            yield made
        finally:
            made.close()
