"""`RedisBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import ClaimStore
from jobpool.broker.finding import Finding
from jobpool.broker.values import (
    Capabilities,
    Existing,
    Message,
    MessageFilter,
    NewMessage,
    QueueStats,
    Reaped,
    ReapPolicy,
    Verb,
)
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.redis import checks
from jobpool_backends.redis.address import read_address
from jobpool_backends.redis.bulk import BulkChanger
from jobpool_backends.redis.claims import RedisClaimStore
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.enqueue import Enqueuer
from jobpool_backends.redis.fetch import Fetcher
from jobpool_backends.redis.inspect import Inspector
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.keys import RedisKeyStore
from jobpool_backends.redis.opening import open_link
from jobpool_backends.redis.reap import Reaper
from jobpool_backends.redis.settle import Settler
from jobpool_backends.redis.wait import Waiter
from jobpool_backends.shared import DeadCaps, brought_by_each, read_caps, refuse_options

DEFAULT_PREFIX = "jobpool"
NO_CAPS = DeadCaps()

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


class RedisBackend(QueueBackend):
    """Messages in one Redis (6.2 or later), shared by any number of machines.

    Every verb is one script, so it is one atomic step. All times are the server's. A call takes as long as the link
    lets it: `timeout` seconds for an answer, `connect_timeout` before that when it has to connect.

    Args:
        link: To the server; closed with this.
        prefix: Prefix of all key names; two prefixes share nothing.
        caps: Bounds on the dead letters of each queue: beyond them the oldest are removed, when anything is reaped or
            dies in the queue.
        signer: Signs what is enqueued; None = unsigned.
        clock: For lease deadlines on this machine; None = the machine's.
    """

    scheme: ClassVar[str] = "redis"
    capabilities: ClassVar[Capabilities] = Capabilities(key_store=True, claims=True)
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
        self._link = link
        self._keys = KeyNames(prefix, spread=self.spread)
        self._enqueuer = Enqueuer(link, self._keys)
        self._fetcher = Fetcher(link, self._keys, self.clock, self.scheme)
        self._settler = Settler(link, self._keys, self.clock, caps)
        self._reaper = Reaper(link, self._keys, caps)
        self._inspector = Inspector(link, self._keys)
        self._bulk_changer = BulkChanger(link, self._keys, self._inspector)
        self._waiter = Waiter(link, self._keys)
        self._key_store = RedisKeyStore(link, self._keys)
        self._claim_store = RedisClaimStore(link, self._keys, caps, self._enqueuer, self._inspector)

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
        """Open what the URL names; options there (`?prefix=shop`) or by keyword, which wins.

        Raises:
            ConfigurationError: The URL or an option cannot be right, or the server is too old or refuses us.
            BackendUnavailable: The server does not answer.
        """
        del runner  # only sync:// has a use for one
        address, left = read_address(url, options)
        prefix = _read_prefix(left.pop("prefix", DEFAULT_PREFIX))
        caps = read_caps(cls.scheme, left)
        refuse_options(address.scheme, left)
        link = open_link(address)
        try:
            checks.check_version(link)
        except BaseException:
            link.close()
            raise
        return cls(link, prefix=prefix, caps=caps, signer=signer, clock=clock)

    def close(self) -> None:
        """Close all connections; threads that wait come back. Safe to call twice."""
        self._waiter.close()
        self._link.close()

    def ping(self) -> None:
        """Ask the server for a sign of life. Raises BackendUnavailable. Blocks for one round trip."""
        self._link.call("PING")

    def prepare(self) -> None:
        """Check that the server is one that jobpool can use; there is nothing to make."""
        checks.check_version(self._link)

    def diagnose(self) -> list[Finding]:
        """Check what the server's settings can lose."""
        return checks.diagnose(self._link)

    def broker_time(self) -> float:
        """Return the server's clock; of a cluster, that of the one which is furthest from this machine's."""
        return checks.server_time(self._link)

    # --- the life of a message -----------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing:
        return self._enqueuer.add(messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        return self._fetcher.fetch(queue, limit, ttl, fetch_id)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        return self._waiter.wait_any(queues, timeout)

    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        brought = brought_by_each(self, settlements)
        answers = self._settler.settle(settlements, brought, call_id)
        if brought and self.spread:
            self._relay(_sources(settlements, brought))
        return answers

    def _relay(self, queues: Collection[str]) -> None:
        """Bring on their way the messages that stand in the outboxes of these queues; where keys are spread."""

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        return self._settler.renew(leases, ttl)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        return self._reaper.reap(queue, policy, visibility_timeout)

    @property
    def keys(self) -> RedisKeyStore:
        """The key store, on the same server under the same prefix."""
        return self._key_store

    @property
    def claims(self) -> ClaimStore:
        """Claims and posted messages, in the same queues; every method is one script, or a few for a long list."""
        return self._claim_store

    # --- looking and tending -------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue, O(1). `oldest` looks at 1,000 messages at most that fell due while nobody
        fetched.
        """
        return self._inspector.counts(queue).stats()

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted. Two round trips, and one for each that holds only
        posted messages.
        """
        return self._inspector.queues()

    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """Return one page in enqueue order: two round trips a queue, and more for a filter that finds few."""
        return self._inspector.page(where or MessageFilter(), after, limit)

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """Return how many messages match, up to `cap`. By queue and state alone at once; else they are looked
        through.
        """
        return self._inspector.count(where, cap)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages, 250 a script."""
        return self._bulk_changer.bulk(where, verb, limit)

    def inspect(self, ident: str) -> Message | None:
        """Return the message with this id, live or dead. Two round trips."""
        return self._inspector.inspect(ident)

    def evicted(self, queue: str) -> int:
        """Return how many dead letters of a queue the caps have removed, ever."""
        return int(self._link.call("GET", self._keys.one(queue, "evicted")) or 0)


def _sources(settlements: Sequence[tuple[JobLease, Settlement]], brought: Mapping[int, object]) -> set[str]:
    return {settlements[place][0].queue for place in brought}


def _read_prefix(value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ConfigurationError(
            f"redis:// takes option prefix as 1 to 100 letters, digits, '.', '_', ':' or '-', starting with a letter or"
            f" digit, not {value!r}"
        )
    return value
