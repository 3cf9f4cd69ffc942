"""`ServiceBusBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.values import Capabilities, Message, MessageFilter, NewMessage, QueueStats, Reaped, ReapPolicy, Verb
from jobpool.clock import Clock
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.servicebus import checks
from jobpool_backends.servicebus.address import read_address
from jobpool_backends.servicebus.bulk import BulkChanger
from jobpool_backends.servicebus.enqueue import Producer
from jobpool_backends.servicebus.fetch import Fetcher, Waiter
from jobpool_backends.servicebus.inspect import Inspector
from jobpool_backends.servicebus.leases import HeldLeases, Locks
from jobpool_backends.servicebus.namespace import CREDENTIAL_VARIABLES, Access, Namespace, require
from jobpool_backends.servicebus.reap import Charges
from jobpool_backends.servicebus.settle import Renewer, Settler
from jobpool_backends.shared import brought_by_each, refuse_options


class ServiceBusBackend(QueueBackend):
    """Messages in the queues of one Service Bus namespace, which must have been made there.

    Every call is handed to a thread with an event loop of the namespace's own, started by the first one. A call takes
    at most the address's `timeout` (and a settlement no longer than its leases run), then it raises BackendUnavailable.

    Args:
        namespace: All connections to the namespace.
        owns: Close the namespace with this; else it is somebody else's, and other backends may use it at the same time.
        signer: Signs what is enqueued; None = unsigned.
        clock: For lease deadlines and delays; None = the machine's.
    """

    scheme: ClassVar[str] = "servicebus"
    capabilities: ClassVar[Capabilities] = Capabilities(
        native_reap=True,
        forfeit=True,
        atomic_nack=False,
        idempotent_settle=False,
        idempotent_fetch=False,
        exact_crashes=False,
        delay_resolution=0.001,
        priorities=False,
        atomic_follow_ups=False,
        atomic_across_queues=False,
        known_ids=False,
        atomic_enqueue=False,
        chosen_ttl=False,
        settle_anywhere=False,
        exact_refusals=False,
        keeps_place=False,
        lists_live=True,
        deletes_live=False,
        exact_stats=False,
        lists_queues=False,
        makes_queues=False,
        dead_caps=False,
    )

    def __init__(
        self,
        namespace: Namespace,
        *,
        owns: bool = True,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        if namespace.address.connection_string is None:
            self.credential_variables = CREDENTIAL_VARIABLES
        self.namespace = namespace
        access = Access(namespace, owns=owns)
        self._access = access
        self.leases = HeldLeases(self.clock)
        self._locks = Locks(namespace.address, self.clock)
        self._charges = Charges()
        self._producer = Producer(access, self.clock)
        self._fetcher = Fetcher(access, self.leases, self._locks, self.scheme)
        self._waiter = Waiter(access)
        self._settler = Settler(access, self.leases, self._producer, self._charges, self.clock)
        self._renewer = Renewer(access, self.leases, self._locks, self.clock)
        self._inspector = Inspector(access, self.leases, self.clock)
        self._tender = BulkChanger(access, self._inspector)

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
        """Open what a connection string or URL names. No I/O: the first call connects.

        Options (`?lock=30`, or by keyword, which wins): `lock`, seconds that the queues lock a message for, 5 to 300
        (60). `timeout`, seconds that a call may take (10). `receivers` of a queue, 1 to 32 (1).

        Raises:
            ConfigurationError: Something in it cannot be right; the text names it, and never a key.
        """
        del runner  # only sync:// has a use for one
        address, left = read_address(url, options)
        refuse_options(cls.scheme, left)
        if address.connection_string is None:
            require()
        return cls(Namespace(address), signer=signer, clock=clock)

    def close(self) -> None:
        """Close all connections, when they are this backend's own. Leases are left to expire. Safe to call twice.

        Blocks for some seconds, at most 15: the SDK closes slowly.
        """
        self._waiter.close()
        self.leases.clear()
        self._access.close()

    def ping(self) -> None:
        """Ask the service for a sign of life. Raises BackendUnavailable, ConfigurationError."""
        checks.ping(self._access)

    def diagnose(self) -> list[Finding]:
        """Check what the service's settings, and the clocks, can lose."""
        return checks.diagnose(self._access, self._locks.noticed)

    # --- the life of a message -----------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> None:
        self._producer.add(messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        del ttl, fetch_id  # a lock lasts as long as the queue says, and a repeated fetch is a fetch
        return self._fetcher.fetch(queue, limit)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        return self._waiter.wait_any(queues, timeout)

    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        return self._settler.settle(settlements, brought_by_each(self, settlements), call_id)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        del ttl
        return self._renewer.renew(leases)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        del visibility_timeout  # the service alone ends locks
        self._access.queue(queue)
        return self._charges.reap(queue, policy)

    # --- looking and tending -------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue, by looking through it: capped."""
        return self._inspector.stats(queue)

    def queues(self) -> list[str]:
        """Return the queues named to this backend that hold a message, sorted."""
        return self._inspector.queues()

    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """Return one page in enqueue order, of the queues named to this backend."""
        return self._inspector.page(where or MessageFilter(), after, limit)

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """Return how many messages match, up to `cap`."""
        return self._inspector.count(where, cap)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages."""
        return self._tender.bulk(where, verb, limit)

    def inspect(self, ident: str) -> Message | None:
        """Return the message with this id, live or dead, in the queues named to this backend."""
        return self._inspector.inspect(ident)
