"""`BeanstalkBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.values import Capabilities, Message, MessageFilter, NewMessage, QueueStats, Reaped, ReapPolicy, Verb
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.beanstalk import checks
from jobpool_backends.beanstalk.address import Address, read_address
from jobpool_backends.beanstalk.bulk import BulkChanger
from jobpool_backends.beanstalk.connection import Held
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.enqueue import Enqueuer
from jobpool_backends.beanstalk.fetch import Fetcher
from jobpool_backends.beanstalk.inspect import Inspector
from jobpool_backends.beanstalk.reap import CrashLedger
from jobpool_backends.beanstalk.settle import Copier, Settler
from jobpool_backends.beanstalk.wait import Prefetched, Waiter
from jobpool_backends.shared import brought_by_each

FRESH = 0.8
"""Part of its lease that a prefetched message must have left to be handed out as it is."""


class BeanstalkBackend(QueueBackend):
    """Messages in one beanstalkd (1.12 or later), shared by any number of machines.

    The connection owns its leases: when it breaks, all of them are lost at once, and `lost` tells them. A lease lasts
    for the `ttr` that its message was put with, not for the time that a fetch or renewal asks for. A change of counters
    puts a copy first and then deletes the original, so a crash in between leaves both.

    A call takes `timeout` seconds at most for each answer, and `connect_timeout` before that when it has to connect.

    Args:
        address: Of the server, and what applies there. Nothing is opened before the first call.
        signer: Signs what is enqueued; None = unsigned.
        clock: For lease deadlines on this machine, and for what is due; None = the machine's.
    """

    scheme: ClassVar[str] = "beanstalk"
    capabilities: ClassVar[Capabilities] = Capabilities(
        native_reap=True,
        forfeit=True,
        atomic_nack=False,
        idempotent_settle=False,
        idempotent_fetch=False,
        exact_crashes=True,
        delay_resolution=1.0,
        priorities=True,
        atomic_follow_ups=False,
        atomic_across_queues=False,
        known_ids=False,
        atomic_enqueue=False,
        chosen_ttl=False,
        settle_anywhere=False,
        lasting_leases=False,
        exact_refusals=False,
        keeps_place=False,
        lists_live=False,
        deletes_live=False,
        exact_stats=True,
        lists_queues=True,
        makes_queues=True,
        dead_caps=False,
    )

    def __init__(self, address: Address, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None) -> None:
        super().__init__(signer=signer, clock=clock)
        self._connections = connections = Connections(address, self.clock)
        self._ledger = CrashLedger()
        self._prefetched = Prefetched()
        self._enqueuer = Enqueuer(connections, self.clock)
        self._fetcher = Fetcher(connections, self._ledger, self.clock, self.scheme)
        self._settler = Settler(
            connections, Copier(connections, self._enqueuer, self._ledger, self.clock), self._ledger, self.clock
        )
        self._waiter = Waiter(connections, self._fetcher, self._prefetched, self.clock)
        self._inspector = Inspector(connections, self.clock)
        self._bulk_changer = BulkChanger(connections, self._inspector, self.clock)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
        runner: object = None,
        **options: object,
    ) -> Self:
        """Open what the URL names; options there (`?ttr=60`) or by keyword, which wins.

        Raises:
            ConfigurationError: The URL or an option cannot be right, or the server is too old.
            BackendUnavailable: The server does not answer.
        """
        del runner  # only sync:// has a use for one
        backend = cls(read_address(url, options), signer=signer, clock=clock)
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

    def ping(self) -> None:
        """Ask the server for a sign of life. Raises BackendUnavailable. Blocks for one round trip."""
        checks.ping(self._connections)

    def prepare(self) -> None:
        """Check that the server is one that jobpool can use; there is nothing to make."""
        checks.check_version(self._connections)

    def diagnose(self) -> list[Finding]:
        """Check what the server can lose or refuses."""
        return checks.diagnose(self._connections)

    # --- the life of a message -----------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> None:
        self._enqueuer.add(messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        del ttl, fetch_id
        self._connections.check_usable()  # what a parent process prefetched is the parent's
        helds = self._take_prefetched(queue, limit)
        if len(helds) < limit:
            try:
                helds += self._fetcher.fetch(queue, limit - len(helds))
            except BackendUnavailable:
                if not helds:
                    raise
        for held in helds:
            held.prefetched = False  # from here on it is told when it is lost; so the look comes after this
        return [held.lease for held in helds if held.is_owned]

    def _take_prefetched(self, queue: str, limit: int) -> list[Held]:
        """Return jobs that were reserved for a waiter, with old leases renewed."""
        helds = self._prefetched.take(queue, limit)
        now = self.clock.boot()
        old = [held for held in helds if held.lease.expires_at - now < FRESH * held.ttr]
        renewed = self._settler.touch(old) if old else {}
        return [held for held in helds if held.is_owned and (held in renewed or held not in old)]

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        return self._waiter.wait_any(queues, timeout)

    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        return self._settler.settle(settlements, brought_by_each(self, settlements), call_id)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        del ttl
        return self._settler.renew(leases)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        del visibility_timeout  # the server has given overdue leases back
        return self._ledger.reap(queue, policy)

    def lost(self) -> list[JobLease]:
        """Return leases whose connection broke since the last call, and before their time. No I/O."""
        return self._connections.lost()

    # --- looking and tending -------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue, O(1); `oldest` is the age of the one that is fetched next."""
        return self._inspector.stats(queue)

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted."""
        return self._inspector.queues()

    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """Return one page of dead letters, the first that died first. A round trip for each dead letter of the
        queue.
        """
        return self._inspector.page(where or MessageFilter(), after, limit)

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """Count the dead letters that match, up to `cap`. At once by queue alone; else all are looked through."""
        return self._inspector.count(where, cap)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages; live ones can only be deleted all of a queue's state."""
        return self._bulk_changer.bulk(where, verb, limit)

    def inspect(self, ident: str) -> Message | None:
        """Return the dead letter with this id. None for a message that is alive: beanstalkd finds none by our ids."""
        return self._inspector.inspect(ident)
