"""`RedisBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Self

from jobpool.backend import (
    Capabilities,
    Message,
    MessageFilter,
    NewMessage,
    QueueBackend,
    QueueStats,
    Reaped,
    ReapPolicy,
    Verb,
)
from jobpool.clock import Clock
from jobpool.definition import LONGEST
from jobpool.errors import ConfigurationError
from jobpool.lease import JobLease
from jobpool.settlement import Ack, Settled, Settlement
from jobpool.signing import EnvelopeSigner
from jobpool_backends.redis import checks
from jobpool_backends.redis.address import read_address
from jobpool_backends.redis.fetching import Fetcher
from jobpool_backends.redis.keys import Keys
from jobpool_backends.redis.link import Link
from jobpool_backends.redis.looking import Looker
from jobpool_backends.redis.opening import open_link
from jobpool_backends.redis.producing import Producer
from jobpool_backends.redis.reaping import Reaper
from jobpool_backends.redis.settling import Caps, Settler
from jobpool_backends.redis.tending import Tender
from jobpool_backends.redis.waiting import Waiter
from jobpool_backends.shared import micros, refuse_options

DEFAULT_PREFIX = "jobpool"

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_MOST_DEAD = 10**9


class RedisBackend(QueueBackend):
    """Messages in one Redis (6.2 or later), shared by any number of machines.

    Every verb is one script, so it is one atomic step. All times are the server's. A call takes as long as the link
    lets it: `timeout` seconds for an answer, `connect_timeout` before that when it has to connect.

    Args:
        link: To the server; closed with this.
        prefix: What the names of all keys begin with; two prefixes share nothing.
        dead_max: Dead letters that a queue keeps; beyond that the oldest are removed. 0 = all.
        dead_max_age: Seconds after which a dead letter is removed, when anything is reaped or dies in its queue.
            0 = never.
        signer: Signs what is enqueued; None = unsigned.
        clock: For lease deadlines on this machine; None = the machine's.
    """

    scheme: ClassVar[str] = "redis"
    capabilities: ClassVar[Capabilities] = Capabilities()
    spread: ClassVar[bool] = False
    """Queues are on different servers, so no step spans two of them."""

    def __init__(
        self,
        link: Link,
        *,
        prefix: str = DEFAULT_PREFIX,
        dead_max: int = 0,
        dead_max_age: float = 0.0,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        caps = Caps(dead_max, micros(dead_max_age))
        self._link = link
        self._keys = Keys(prefix, spread=self.spread)
        self._producer = Producer(link, self._keys)
        self._fetcher = Fetcher(link, self._keys, self.clock, self.scheme)
        self._settler = Settler(link, self._keys, self.clock, caps)
        self._reaper = Reaper(link, self._keys, caps)
        self._looker = Looker(link, self._keys)
        self._tender = Tender(link, self._keys, self._looker)
        self._waiter = Waiter(link, self._keys)

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
        dead_max = _read_cap("dead_max", left.pop("dead_max", 0), _MOST_DEAD, whole=True)
        dead_max_age = _read_cap("dead_max_age", left.pop("dead_max_age", 0), LONGEST)
        refuse_options(address.scheme, left)
        link = open_link(address)
        try:
            checks.check_version(link)
        except BaseException:
            link.close()
            raise
        return cls(link, prefix=prefix, dead_max=int(dead_max), dead_max_age=dead_max_age, signer=signer, clock=clock)

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

    def cautions(self) -> list[str]:
        """What the server's settings can lose, a sentence each."""
        return checks.cautions(self._link)

    # --- the life of a message -----------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> None:
        self._producer.add(messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        return self._fetcher.fetch(queue, limit, ttl, fetch_id)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        return self._waiter.wait_any(queues, timeout)

    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        follow_ups = {
            place: [self.pack(definition) for definition in settlement.follow_ups]
            for place, (_, settlement) in enumerate(settlements)
            if type(settlement) is Ack and settlement.follow_ups
        }
        answers = self._settler.settle(settlements, follow_ups, call_id)
        if follow_ups and self.spread:
            self._relay(_sources(settlements, follow_ups))
        return answers

    def _relay(self, queues: Collection[str]) -> None:
        """Bring on their way the follow-ups that stand in the outboxes of these queues; where keys are spread."""

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        return self._settler.renew(leases, ttl)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        return self._reaper.reap(queue, policy, visibility_timeout)

    # --- looking and tending -------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Counts of one queue, O(1). `oldest` looks at 1,000 messages at most that fell due while nobody fetched."""
        return self._looker.stats(queue)

    def queues(self) -> list[str]:
        """The names of all queues that hold a message, sorted. Two round trips."""
        return self._looker.queues()

    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """One page in enqueue order: two round trips a queue, and more for a filter that finds few."""
        return self._looker.page(where or MessageFilter(), after, limit)

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """How many messages match, up to `cap`. By queue and state alone at once; else they are looked through."""
        return self._looker.count(where, cap)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages, 250 a script."""
        return self._tender.bulk(where, verb, limit)

    def inspect(self, ident: str) -> Message | None:
        """The message with this id, live or dead. Two round trips."""
        return self._looker.inspect(ident)

    def evicted(self, queue: str) -> int:
        """How many dead letters of a queue the caps have removed, ever."""
        return int(self._link.call("GET", self._keys.one(queue, "evicted")) or 0)


def _sources(settlements: Sequence[tuple[JobLease, Settlement]], follow_ups: Mapping[int, object]) -> set[str]:
    return {settlements[place][0].queue for place in follow_ups}


def _read_prefix(value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ConfigurationError(
            f"redis:// takes option prefix as 1 to 100 letters, digits, '.', '_', ':' or '-', starting with a letter or"
            f" digit, not {value!r}"
        )
    return value


def _read_cap(name: str, value: object, most: float, *, whole: bool = False) -> float:
    try:
        cap = float(str(value))
    except ValueError:
        cap = -1.0
    if not 0 <= cap <= most or (whole and not cap.is_integer()):
        kind = "whole number" if whole else "number of seconds"
        raise ConfigurationError(f"redis:// takes option {name} as a {kind} from 0 (no cap) to {most:g}, not {value!r}")
    return cap
