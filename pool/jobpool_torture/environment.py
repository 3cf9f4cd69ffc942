"""A run's folder, its pools, and a network and a clock for each of them, as far as they can be had."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import LOCAL, open_backend, scheme_of
from jobpool.message.signing import EnvelopeSigner
from jobpool_torture import spoiling
from jobpool_torture.baseline import FILE
from jobpool_torture.broker_faults import Access, make_access
from jobpool_torture.clocks import PoolClock, missing
from jobpool_torture.fleet import Fleet
from jobpool_torture.judge import KILL_GRACE_S, MAX_CRASHES, Window
from jobpool_torture.ledger import LASTS, LEDGER
from jobpool_torture.nemesis import Nemesis
from jobpool_torture.network import NetworkFailed, Proxy, find_route
from jobpool_torture.options import Options
from jobpool_torture.processes import SOCKET, UNIX_SOCKET
from jobpool_torture.workload import APP

OWN_CLOCK = "the broker keeps time by this machine's clock, which no pool has for itself"
MOMENTS = "the broker is told until when a job is put off: a pool whose clock is an hour ahead puts it off for an hour"
TOLD_MOMENTS = ("servicebus",)
UNIX_SCHEMES = ("redis+unix", "postgresql", "postgres")
"""Schemes whose servers may be reached by a Unix socket; no proxy stands there then."""

STOP_GRACE_S = 5.0
KEYS_KEPT = "3h"  # how long done keys are known: longer than any clock is set ahead
LOST_REPLIES_SHARE = 0.05  # share of the broker's replies that the producer never gets while faults strike


def connections(url: str) -> str:
    """Return the kind of descriptor that connections to this broker are (see `descriptors`)."""
    scheme = scheme_of(url)
    if scheme in LOCAL:
        return FILE
    return UNIX_SOCKET if scheme in UNIX_SCHEMES and isinstance(find_route(url), str) else SOCKET


class Environment:
    """A run's folder, pools and networks; `close` ends every process.

    Args:
        options: With a queue that is named.
        folder: An empty directory.
        backend: Open, to be asked what the broker can do. Not kept.
        wanted: Kinds of fault that the run may strike; nothing is built for other kinds.
    """

    def __init__(self, options: Options, folder: Path, backend: QueueBackend, wanted: Collection[str]) -> None:
        self.options = options
        self.connections = connections(options.backend)
        self.folder = folder
        self.capabilities = backend.capabilities
        self.prefix = secrets.token_hex(4)  # of all ids of its jobs
        self.ledger = folder / "ledger.jsonl"
        self._orders = folder / "orders"
        self._key = secrets.token_hex(16)
        self.signer = EnvelopeSigner([self._key])
        self._networks: list[Proxy] = []  # of each pool, and then of the producer; [] = there are none
        with ExitStack() as self._stack:
            access = make_access(options.backend) if "access.deny" in wanted else "it was not asked for"
            no_clock = OWN_CLOCK if backend.scheme in LOCAL else MOMENTS if backend.scheme in TOLD_MOMENTS else ""
            no_clock = no_clock or (missing() if "clock.jump" in wanted else "it was not asked for")
            self._build(no_clock, access)
            self._stack = self._stack.pop_all()

    def _build(self, no_clock: str, access: Access | str) -> None:
        options = self.options
        self._access = access
        self._stack.callback(self.remove_user)
        self._orders.mkdir()
        # A pool reads the nearest configuration file: this one, and not the user's own.
        (self.folder / "jobpool.toml").touch()
        (*urls, self._producer_url), no_network = self._connected()
        numbers = () if no_clock else range(options.pools)
        clocks = [PoolClock(self.folder / f"clock{number}") for number in numbers]
        variables = {LEDGER: str(self.ledger), LASTS: f"{options.seconds:g}", "JOBPOOL_SIGNING_KEY": self._key}
        variables[spoiling.ORDERS_FOLDER] = str(self._orders)
        self.fleet = Fleet(self.folder, urls, self._flags(), environment=variables, clocks=clocks)
        self._stack.callback(self.fleet.kill_all)
        self.nemesis = Nemesis(
            self.fleet,
            no_network or self._networks[:-1],
            no_clock or clocks,
            access,
            options.restart_broker,
            orders=self._orders,
            record=self.folder / "strikes.jsonl",
        )
        self._stack.callback(self.nemesis.close)

    def _connected(self) -> tuple[list[str], str]:
        """Return the URLs of the pools and the producer, each through a network; and why there is none, or ""."""
        own = self.options.backend
        pools = [self._access.url if isinstance(self._access, Access) else own] * self.options.pools
        urls = list(map(self.options.timed, [*pools, own]))
        through = []
        for url in urls:
            route = find_route(url)
            if isinstance(route, str):
                return urls, route
            network = Proxy(route.host, route.port)
            self._stack.callback(network.close)
            self._networks.append(network)
            through.append(route.to(network.host, network.port))
        return through, ""

    def _flags(self) -> list[str]:
        options = self.options
        keys = ("--idempotency-ttl", KEYS_KEPT, "--rollups", "0") if self.capabilities.key_store else ()
        return [
            *("-A", APP, "-Q", options.queue, "-w", str(options.workers), "--ttl", f"{options.ttl:g}"),
            *("--kill-grace", f"{KILL_GRACE_S:g}", "--stop-grace", f"{STOP_GRACE_S:g}", "--retry", "fixed base=200ms"),
            *("--max-crashes", str(MAX_CRASHES), "--log-format", "json"),
            *keys,
        ]

    def connect(self) -> QueueBackend:
        return open_backend(self._producer_url, signer=self.signer)

    def disturb_producer(self, share: float = LOST_REPLIES_SHARE) -> None:
        """Lose this share of the answers to the producer's enqueues from now on."""
        seed = self.options.seed
        self._order(self._networks[-1:], lambda network: network.drop_replies(share=share, seed=seed))

    def remove_user(self) -> None:
        """Delete the user of the run's own, once no pool needs it any more. Safe to call twice."""
        if isinstance(self._access, Access) and (why := self._access.remove()):
            self.nemesis.problems.append(why)

    def hang_up(self) -> None:
        """Reset all connections through networks, as a keep-alive would: those that lost something hold leases."""
        begun = time.monotonic()
        self._order(self._networks, lambda network: network.cut())
        self.nemesis.windows.append(Window("", "net.cut", begun, time.monotonic()))

    def _order(self, networks: Sequence[Proxy], order: Callable[[Proxy], None]) -> None:
        """Give the order to each proxy. A dead one is a problem of the torture's, and does not end the run."""
        for network in networks:
            try:
                order(network)
            except NetworkFailed as error:
                self.nemesis.problems.append(str(error))

    def close(self) -> None:
        """Kill what runs, and end the networks. Safe to call twice."""
        self._stack.close()
