"""Brokers in memory that can do as little as others: with leases that they choose, or that break, and with few looks.

For the pool's own tests, which need such a broker at a moment of their choosing. What the real ones do is the contract
suite's to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from jobpool.broker.finding import Finding
from jobpool.broker.values import (
    Capabilities,
    Existing,
    Leases,
    Message,
    MessageFilter,
    NewMessage,
    QueueStats,
    Reaped,
    ReapPolicy,
    State,
    Verb,
)
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, ConfigurationError, Unsupported
from jobpool.message.lease import JobLease
from jobpool_backends.memory import MemoryBackend
from support.harnesses.embedded import MemoryHarness


class OwnLeases(MemoryBackend):
    """Its leases last for `lasts` seconds, whatever is asked for. The next `silent` renewals are not answered."""

    capabilities: ClassVar[Capabilities] = replace(MemoryBackend.capabilities, leases=Leases.BROKER)

    def __init__(self, lasts: float, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.lasts = lasts
        self.silent = 0
        self.renewed_at: list[float] = []

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        del ttl
        return super()._fetch(queue, limit, self.lasts, fetch_id)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        del ttl
        if self.silent:
            self.silent -= 1
            raise BackendUnavailable("silent")
        self.renewed_at.append(self.clock.boot())
        return super()._renew(leases, self.lasts)


class Breakable(MemoryBackend):
    """Its leases end when a test breaks them, as if their connection had: at once, and somebody else may have them."""

    capabilities: ClassVar[Capabilities] = replace(MemoryBackend.capabilities, leases=Leases.CONNECTION)

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.looks = 0
        self.leases: list[JobLease] = []
        self._broken: list[JobLease] = []

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        self.leases = super()._fetch(queue, limit, ttl, fetch_id)
        return self.leases

    def break_all(self, leases: Iterable[JobLease]) -> None:
        for lease in leases:
            self.release(lease)
            self._broken.append(lease)

    def lost(self) -> list[JobLease]:
        self.looks += 1
        broken, self._broken = self._broken, []
        return broken


class Faulty(MemoryBackend):
    """One that is not ours, with a fault."""

    def lost(self) -> list[JobLease]:
        raise ZeroDivisionError


class Plain(MemoryBackend):
    """It has the parts without defaults, and no others."""

    scheme: ClassVar[str] = "plain"
    capabilities: ClassVar[Capabilities] = Capabilities()
    _edits = None  # type: ignore[assignment]

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._keys = self._claims = self._results = self._batches = self._evicted = None

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        options.pop("timeout", None)
        if options:
            raise ConfigurationError(f"{url} has no options, such as {', '.join(options)}")
        return cls(**common)

    def diagnose(self) -> list[Finding]:
        return []


class PlainHarness(MemoryHarness):
    kind = Plain
    capabilities = Plain.capabilities
    without = ("edits", "dead_caps")


LITTLE = Capabilities(
    leases=Leases.BROKER,
    keeps_records=False,
    exact_counts=False,
    priorities=False,
    makes_queues=False,
    lists_live=False,
    delay_resolution=1.0,
)


class Modest(MemoryBackend):
    """Shows and deletes as little as any broker may, and knows the queues `made` alone, each once it was told of it.

    All that are opened by URL in a test share `shared`'s messages.
    """

    scheme: ClassVar[str] = "modest"
    capabilities: ClassVar[Capabilities] = LITTLE
    made: ClassVar[set[str]] = {"default", "reports"}
    shared: ClassVar[MemoryBackend | None] = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._told: set[str] = set()
        self._charged: list[Reaped] = []
        self._keys = self._claims = None
        if self.shared is not None:
            self._turn, self._store = self.shared._turn, self.shared._store
            self._inspector = self.shared._inspector

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Modest:
        del url
        return cls(signer=options.get("signer"), clock=options.get("clock"))

    def _known(self, queue: str) -> str:
        if queue not in self.made:
            raise ConfigurationError(f"there is no queue {queue!r} at this broker: create it there first")
        self._told.add(queue)
        return queue

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing:
        for message in messages:
            self._known(message.queue)
        return super()._enqueue(messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        """Native reap: what has expired is charged when it is met."""
        self._charged += super()._reap(self._known(queue), ReapPolicy(max_crashes=1, back_off=0.0), None)
        return super()._fetch(queue, limit, ttl, fetch_id)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        del queue, policy, visibility_timeout
        charged, self._charged = self._charged, []
        return charged

    def ping(self) -> None:
        """It is there."""

    def stats(self, queue: str) -> QueueStats:
        counts = super().stats(self._known(queue))
        return dataclasses.replace(counts, waiting=counts.waiting + counts.leased, leased=0)

    def queues(self) -> list[str]:
        return [queue for queue in super().queues() if queue in self._told]

    def list_messages(self, where: MessageFilter | None = None, **page: Any) -> list[Message]:
        return super().list_messages(self._dead(where or MessageFilter()), **page)

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        return super().count(self._dead(where), cap=cap)

    def inspect(self, ident: str) -> Message | None:
        return next(iter(self.list_messages(MessageFilter(ids=(ident,)))), None)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        if verb is Verb.DELETE and where.states != (State.DEAD,):
            whole = MessageFilter(queue=where.queue, states=where.states)
            if where != whole or where.queue is None:
                raise Unsupported("keeps_records: only all of a queue")
        return super().bulk(where, verb, limit=limit)

    def _dead(self, where: MessageFilter) -> MessageFilter:
        if where.states and State.DEAD not in where.states:
            raise Unsupported("lists_live: only dead letters are listed")
        if where.queue is not None:
            self._known(where.queue)
        return replace(where, states=(State.DEAD,), ids=where.ids) if where.queue or self._told else _NOTHING


_NOTHING = MessageFilter(ids=("there is no such message",))
