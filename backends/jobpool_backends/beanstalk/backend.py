"""`BeanstalkBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.values import Capabilities, Leases
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.beanstalk import checks
from jobpool_backends.beanstalk.address import Address, read_address
from jobpool_backends.beanstalk.bulk import BulkChanger
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.enqueue import add
from jobpool_backends.beanstalk.fetch import Fetcher
from jobpool_backends.beanstalk.inspect import Inspector, foreign_queues
from jobpool_backends.beanstalk.settle import Settler
from jobpool_backends.beanstalk.wait import Prefetched, Waiter
from jobpool_backends.reaping import NativeReaping

FRESH = 0.8  # part of its lease that a prefetched message must have left to be handed out as it is


class BeanstalkBackend(QueueBackend):
    """Messages in one beanstalkd (1.12 or later), shared by any number of machines.

    The connection owns its leases: when it breaks, all of them are lost at once, and `lost` tells them. A lease lasts
    for the `ttr` that its message was put with, not for the time that a fetch or renewal asks for. A change of counters
    puts a copy first and then deletes the original, so a crash in between leaves both.

    A call takes `timeout` seconds at most for each answer, and `connect_timeout` before that when it has to connect.

    `stats` is O(1); its `oldest` is the age of the message that is fetched next. Pages, `count` and `inspect` see only
    dead letters, because beanstalkd finds no message by our ids. A page begins with those that died first, and takes a
    round trip for each dead letter of the queue. `count` by queue alone is answered at once. `bulk` deletes live
    messages only by all of a queue's state.

    Nothing is opened before the first call. `clock`: for lease deadlines, and for what is due; None = the machine's.
    """

    scheme: ClassVar[str] = "beanstalk"
    capabilities: ClassVar[Capabilities] = Capabilities(
        leases=Leases.CONNECTION,
        keeps_records=False,
        atomic_across_queues=False,
        lists_live=False,
        delay_resolution=1.0,
    )

    def __init__(self, address: Address, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None) -> None:
        super().__init__(signer=signer, clock=clock)
        self._connections = connections = Connections(address, self.clock)
        ledger = NativeReaping()
        self._prefetched = Prefetched()
        self._fetcher = Fetcher(connections, ledger, self.scheme)
        self._settler = Settler(connections, ledger)
        self._waiter = Waiter(connections, self._fetcher, self._prefetched)
        self._inspector = Inspector(connections)
        self._enqueue = partial(add, connections)
        self._wait_any = self._waiter.wait_any
        self._settle = self._settler.settle
        self._renew = self._settler.renew
        self._reap = ledger.reap
        self._bulk = BulkChanger(connections, self._inspector).bulk

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        backend = cls(read_address(url, options), **common)
        try:
            backend.prepare()
        except BaseException:
            backend.close()
            raise
        return backend

    def close(self) -> None:
        """Close all connections; threads that wait come back. The leases end, and their messages go to others."""
        if self._connections.is_inherited:  # after a fork they are the parent's
            return
        self._waiter.close()
        self._connections.close()
        self._waiter.join()
        super().close()

    def ping(self) -> None:
        """Ask the server for a sign of life. Raises BackendUnavailable. Blocks for one round trip."""
        with self._connections.spare() as connection:
            connection.check(connection.burst([b"list-tube-used"])[0])

    def prepare(self) -> None:
        """Check that the server is one that jobpool can use; there is nothing to make."""
        with self._connections.spare() as connection:
            checks.require_version(self._connections.address.title, connection.stats()[0])

    def diagnose(self) -> list[Finding]:
        """Check what the server can lose or refuses."""
        return checks.diagnose(self._connections)

    def foreign_queues(self) -> list[str]:
        """Return queues whose first jobs have no header of jobpool's. Blocks for two round trips a tube."""
        with self._connections.spare() as connection:
            return foreign_queues(connection)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        del ttl, fetch_id
        self._connections.check_usable()  # a parent process's prefetched jobs are the parent's
        held_jobs = self._prefetched.take(lambda held: held.lease.queue == queue, limit)
        now = self.clock.boot()
        old = [held for held in held_jobs if held.lease.expires_at - now < FRESH * held.ttr]
        renewed = self._settler.touch(old) if old else {}
        held_jobs = [held for held in held_jobs if held.is_owned and (held in renewed or held not in old)]
        if len(held_jobs) < limit:
            try:
                held_jobs += self._fetcher.fetch(queue, limit - len(held_jobs))
            except BackendUnavailable:
                if not held_jobs:
                    raise
        for held in held_jobs:
            held.prefetched = False  # from here on it is told when it is lost; so the look comes after this
        return [held.lease for held in held_jobs if held.is_owned]

    def lost(self) -> list[JobLease]:
        """Return leases whose connection broke since the last call, and before their time. No I/O."""
        return self._connections.lost()
