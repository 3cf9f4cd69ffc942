"""`BeanstalkBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.values import Capabilities, Leases, Reaped, ReapPolicy
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.beanstalk import checks
from jobpool_backends.beanstalk.address import Address, read_address
from jobpool_backends.beanstalk.charging import Ledger
from jobpool_backends.beanstalk.copying import Copier
from jobpool_backends.beanstalk.fetching import Fetcher
from jobpool_backends.beanstalk.line import Held
from jobpool_backends.beanstalk.lines import Lines
from jobpool_backends.beanstalk.looking import Looker
from jobpool_backends.beanstalk.producing import Producer
from jobpool_backends.beanstalk.settling import Settler
from jobpool_backends.beanstalk.stash import Stash
from jobpool_backends.beanstalk.tending import Tender
from jobpool_backends.beanstalk.waiting import Waiter

FRESH = 0.8
"""Part of its lease that a stashed message must have left to be handed out as it is."""


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

    Args:
        address: Of the server, and what applies there. Nothing is opened before the first call.
        signer: Signs what is enqueued; None = unsigned.
        clock: For lease deadlines on this machine, and for what is due; None = the machine's.
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
        self._lines = lines = Lines(address, self.clock)
        self._ledger = Ledger()
        self._stash = Stash()
        producer = Producer(lines, self.clock)
        self._fetcher = Fetcher(lines, self._ledger, self.clock, self.scheme)
        self._settler = Settler(lines, Copier(lines, producer, self._ledger, self.clock), self._ledger, self.clock)
        self._waiter = Waiter(lines, self._fetcher, self._stash, self.clock)
        self._inspector = inspector = Looker(lines, self.clock)
        self._enqueue = producer.add
        self._wait_any = self._waiter.wait_any
        self._settle = self._settler.settle
        self._bulk = Tender(lines, inspector, self.clock).bulk

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
        if self._lines.is_inherited:  # after a fork they are the parent's
            return
        self._waiter.close()
        self._lines.close()
        self._waiter.join()

    def ping(self) -> None:
        """Ask the server for a sign of life. Raises BackendUnavailable. Blocks for one round trip."""
        checks.ping(self._lines)

    def prepare(self) -> None:
        """Check that the server is one that jobpool can use; there is nothing to make."""
        checks.check_version(self._lines)

    def diagnose(self) -> list[Finding]:
        """Check what the server can lose or refuses."""
        return checks.diagnose(self._lines)

    # --- the life of a message -----------------------------------------------------------------------

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        del ttl, fetch_id
        self._lines.check_usable()  # a parent process's stash is the parent's
        helds = self._stashed(queue, limit)
        if len(helds) < limit:
            try:
                helds += self._fetcher.fetch(queue, limit - len(helds))
            except BackendUnavailable:
                if not helds:
                    raise
        for held in helds:
            held.stashed = False  # from here on it is told when it is lost; so the look comes after this
        return [held.lease for held in helds if held.is_owned]

    def _stashed(self, queue: str, limit: int) -> list[Held]:
        """Return jobs that were reserved for a waiter, with old leases renewed."""
        helds = self._stash.take(queue, limit)
        now = self.clock.boot()
        old = [held for held in helds if held.lease.expires_at - now < FRESH * held.ttr]
        renewed = self._settler.touch(old) if old else {}
        return [held for held in helds if held.is_owned and (held in renewed or held not in old)]

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        del ttl
        return self._settler.renew(leases)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        del visibility_timeout  # the server has given overdue leases back
        return self._ledger.reap(queue, policy)

    def lost(self) -> list[JobLease]:
        """Return leases whose connection broke since the last call, and before their time. No I/O."""
        return self._lines.lost()
