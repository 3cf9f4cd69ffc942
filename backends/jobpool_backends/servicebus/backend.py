"""`ServiceBusBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.values import Capabilities, Leases, Reaped, ReapPolicy
from jobpool.clock import Clock
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.reaping import NativeReaping
from jobpool_backends.servicebus import checks
from jobpool_backends.servicebus.address import read_address
from jobpool_backends.servicebus.bulk import BulkChanger
from jobpool_backends.servicebus.enqueue import Producer
from jobpool_backends.servicebus.inspect import Inspector
from jobpool_backends.servicebus.leases import Fetcher, HeldLeases, Locks, Waiter
from jobpool_backends.servicebus.namespace import CREDENTIAL_VARIABLES, Namespace, require
from jobpool_backends.servicebus.settle import Settler


class ServiceBusBackend(QueueBackend):
    """Messages in the queues of one Service Bus namespace, which must have been made there.

    Every call is handed to a thread with an event loop of the namespace's own, started by the first one. A call takes
    at most the address's `timeout` (and a settlement no longer than its leases run), then it raises BackendUnavailable.

    `stats` looks through its queue, so it is capped. Lists, counts and `inspect` see the queues that were named to this
    backend. `close` blocks for some seconds, at most 15: the SDK closes slowly.

    `clock`: for lease deadlines and delays; None = the machine's.
    """

    scheme: ClassVar[str] = "servicebus"
    capabilities: ClassVar[Capabilities] = Capabilities(
        leases=Leases.BROKER,
        keeps_records=False,
        atomic_across_queues=False,
        exact_counts=False,
        priorities=False,
        makes_queues=False,
        delay_resolution=0.001,
    )

    def __init__(
        self, namespace: Namespace, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        if namespace.address.connection_string is None:
            self.credential_variables = CREDENTIAL_VARIABLES
        self.only_queue = namespace.address.only
        self.namespace = namespace
        self.leases = HeldLeases(self.clock)
        self._locks = Locks(namespace.address, self.clock)
        self._charges = NativeReaping()
        producer = Producer(namespace, self.clock)
        self._fetch = Fetcher(namespace, self.leases, self._locks, self.scheme).fetch
        self._inspector = inspector = Inspector(namespace, self.leases, self.clock)
        self._enqueue = producer.add
        self._wait_any = Waiter(namespace).wait_any
        settler = Settler(namespace, self.leases, self._locks, producer, self._charges, self.clock)
        self._settle, self._renew = settler.settle, settler.renew
        self._bulk = BulkChanger(namespace, producer, inspector).bulk
        self._closers = (self.leases.clear, namespace.close)

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        address = read_address(url, options)  # no I/O: the first call connects
        if address.connection_string is None:
            require()
        return cls(Namespace(address), **common)

    def ping(self) -> None:
        """Ask the service for a sign of life. Raises BackendUnavailable, ConfigurationError."""
        checks.ping(self.namespace)

    def diagnose(self) -> list[Finding]:
        """Check what the service's settings, and the clocks, can lose."""
        return checks.diagnose(self.namespace, self._locks.noticed)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        del visibility_timeout  # the service alone ends locks
        self.namespace.queue(queue)
        return self._charges.reap(queue, policy)
