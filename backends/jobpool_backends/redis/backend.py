"""`RedisBackend`, `RedisClusterBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import Capabilities, Reaped, ReapPolicy
from jobpool.clock import Clock
from jobpool.errors import OUTAGES
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.redis import checks
from jobpool_backends.redis.address import DEFAULT_PREFIX, Address, read_address
from jobpool_backends.redis.batches import Batches
from jobpool_backends.redis.claims import RedisClaimStore
from jobpool_backends.redis.cluster_connections import ClusterLink
from jobpool_backends.redis.connection import Sentinels
from jobpool_backends.redis.connections import Link, ServerLink
from jobpool_backends.redis.enqueue import Enqueuer
from jobpool_backends.redis.inspect import Inspector
from jobpool_backends.redis.keys import RedisKeyStore
from jobpool_backends.redis.keyspace import Keyspace
from jobpool_backends.redis.leases import Leases
from jobpool_backends.redis.wait import Results, Waiter
from jobpool_backends.shared import DeadCaps

NO_CAPS = DeadCaps()


class RedisBackend(QueueBackend):
    """Messages in one Redis (6.2 or later), shared by any number of machines.

    Every verb is one script, so it is one atomic step. All times are the server's. A call takes as long as the link
    lets it: `timeout` seconds for an answer, `connect_timeout` before that when it has to connect.

    `stats` is O(1); its `oldest` looks at 1,000 messages at most that fell due while nobody fetched. `queues` takes two
    round trips, and one for each queue that holds only posted messages. A page takes two a queue, and more for a filter
    that finds few; `inspect` takes two. `count` answers at once by queue and state alone; else the messages are looked
    through. `bulk` and claims are one script, or for a long list one for each 250 messages.

    `link` is closed with this. All key names begin with `prefix`; two prefixes share nothing, unless one begins with
    the other and a colon. `caps` bound the dead letters of each queue: beyond them the oldest are removed, when
    anything is reaped or dies in the queue. `signer` signs what is enqueued; None = unsigned. `clock` is for lease
    deadlines on this machine.
    """

    scheme: ClassVar[str] = "redis"
    capabilities: ClassVar[Capabilities] = Capabilities(key_store=True)
    spread: ClassVar[bool] = False
    """Queues are on different servers, so no step spans two of them."""

    def __init__(
        self,
        link: Link,
        *,
        prefix: str = DEFAULT_PREFIX,
        caps: DeadCaps = NO_CAPS,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        self._link, self._prefix = link, prefix
        keys = Keyspace(link, prefix, spread=self.spread)
        self._enqueuer = Enqueuer(keys)
        self._waiter = waiter = Waiter(keys)
        self._leases = Leases(keys, self.clock, caps, self.scheme, waiter.saw)
        self._inspector = inspector = Inspector(keys)
        self._results = Results(keys, inspector)
        self._batches = None if self.spread else Batches(keys)
        self._keys = RedisKeyStore(keys)
        self._claims = RedisClaimStore(keys, caps, self._enqueuer, inspector)
        self._enqueue = self._enqueuer.add
        self._fetch = self._leases.fetch
        self._settle = self._leases.settle
        self._renew = self._leases.renew
        self._reap = self._leases.reap
        self._wait_any = waiter.wait_any
        self._bulk, self._edits, self._evicted = inspector.bulk, inspector.edit, inspector.evicted
        self._closers = (waiter.close, link.close)

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        address = read_address(url, options)
        link = open_link(address)
        try:
            checks.check_version(link)
        except BaseException:
            link.close()
            raise
        return cls(link, prefix=address.prefix, caps=address.caps, **common)

    def ping(self) -> None:
        """Ask the server, or any of a cluster, for a sign of life. Raises BackendUnavailable. One round trip."""
        self._link.ping()

    def diagnose(self) -> list[Finding]:
        """Check what the server's settings can lose, and that it takes writes."""
        return [*checks.diagnose(self._link), *checks.try_to_write(self._link, self._prefix)]

    def broker_time(self) -> float:
        """Return the server's clock; of a cluster, that of the one which is furthest from this machine's."""
        return checks.server_time(self._link)


class RedisClusterBackend(RedisBackend):
    """Messages in a Redis Cluster. All keys of a queue are in one slot, so its node does each verb in one atomic step.

    A call for several queues works queue by queue. An `enqueue_many` may be half done when it raises, and is to be
    repeated with its ids; an id is unique only in its queue. Messages that a settlement brings to other queues wait in
    an outbox, which is written in the same step. They are brought there right after it, or after a crash by the next
    reap of the queue.
    """

    scheme: ClassVar[str] = "redis+cluster"
    capabilities: ClassVar[Capabilities] = replace(RedisBackend.capabilities, atomic_across_queues=False)
    spread: ClassVar[bool] = True

    def __init__(self, link: Link, **options: Any) -> None:
        super().__init__(link, **options)
        self._settle = self._settle_and_relay
        self._reap = self._reap_and_relay

    def _settle_and_relay(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        answers = self._leases.settle(settlements, brought, call_id)
        if brought:
            self._relay({settlements[place][0].queue for place in brought})
        return answers

    def _reap_and_relay(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        reaped = self._leases.reap(queue, policy, visibility_timeout)
        self._enqueuer.list_queues([queue])
        self._relay([queue])
        return reaped

    def _relay(self, queues: Collection[str]) -> None:
        with suppress(*OUTAGES):  # the call is done, and is to be told so; the next reap brings them
            self._enqueuer.relay(queues)


def open_link(address: Address) -> Link:
    """Return a link to what the address names. Does not connect: the first call does."""
    if address.service:
        sentinels = Sentinels(address.seeds, address.node, address.service)
        return ServerLink(sentinels.place, sentinels.open)
    return ClusterLink(address.seeds) if address.cluster else ServerLink(address.seeds[0])
