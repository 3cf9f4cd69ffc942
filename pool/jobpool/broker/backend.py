"""The contract between jobpool and a broker. Its docstrings are the specification; one suite tests them all.

`QueueBackend` is a template: the public methods check their arguments, mint ids and wait, once for all brokers. A
broker fills in the underscored steps, each one atomic. Times are seconds. Wall-clock times are Unix time on the
*broker's* clock and say so; lease deadlines are on this machine's CLOCK_BOOTTIME.

A message is at every moment in exactly one state:

    enqueue ──► WAITING ◄──────────────┐            due is inclusive: available_at <= now
       │           │ fetch             │ release, reap, nack(0)
       ▼           ▼                   │
    DELAYED     LEASED ── nack(d) ─► DELAYED
                   │  └── abandon, reap past max_crashes ──► DEAD ── retry ──► WAITING
                   └── ack ──► gone
"""

from __future__ import annotations

import hashlib
import math
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from jobpool.broker.broker_time import BrokerTime
from jobpool.broker.claim_store import ClaimStore
from jobpool.broker.finding import Finding, cautions_of
from jobpool.broker.key_store import KeyStore
from jobpool.clock import Clock, SystemClock
from jobpool.errors import ConfigurationError, InvalidJob, LeaseLost, Unsupported
from jobpool.message.death import Death
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, encode, sign_again
from jobpool.message.frozen import maker
from jobpool.message.lease import JobLease
from jobpool.message.names import QUEUE_NAME as QUEUE_NAME
from jobpool.message.names import check_queue as check_queue
from jobpool.message.names import storable
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool.message.units import check_count, check_number

REMEMBER_CALLS = 60.0
"""Seconds for which a settle call's or a fetch's id is remembered (law 2, law 1)."""

ENQUEUE_MEMORY = 600.0
"""Seconds after its end for which an id that a producer gave is still known (law 8)."""

MAX_FETCH = 1_000_000
"""Messages in one fetch at most, however many are asked for."""

YEAR_S = 366 * 86400.0

Ticket = dict[str, str | int]
"""See `QueueBackend.ticket`."""


class State(StrEnum):
    """The state of a message."""

    WAITING = "waiting"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of a broker. Shown in docs/backends.md as a table made from these fields."""

    native_reap: bool = False
    """The broker frees expired leases itself. `reap` only sets the policy, by which a crash is charged when its message
    is fetched next, and returns those charged since the last call.
    """
    forfeit: bool = True
    """A lease can be ended early with its cause; else it simply runs out."""
    atomic_nack: bool = True
    """nack is one step; else a copy is put first and a crash between the two leaves a duplicate."""
    idempotent_settle: bool = True
    """A repeated settle call is answered ALREADY."""
    idempotent_fetch: bool = True
    """A repeated fetch id returns the same leases."""
    exact_crashes: bool = True
    """Each expired lease is charged exactly once."""
    delay_resolution: float = 1e-6
    """Seconds to which delays are rounded up."""
    priorities: bool = True
    """A smaller priority number is fetched sooner."""
    key_store: bool = False
    """Idempotency records, locks, unique enqueue and shared limits: `QueueBackend.keys`."""
    claims: bool = False
    """Sets of messages checked out by hand, and posted messages: `QueueBackend.claims`."""
    atomic_follow_ups: bool = True
    """`Ack.follow_ups`, and the message of a `Move`, are enqueued in the same step as the settlement."""
    atomic_across_queues: bool = True
    """One enqueue over several queues is all or none, and a given id is known in all of them; else queue by queue."""
    enqueue_in_transaction: bool = False
    """`enqueue_in` adds jobs to a database transaction of the caller's."""
    ack_in_transaction: bool = False
    """A handler may ack its message in a database transaction of its own (see `ticket`)."""
    leases: bool = True
    """Messages are kept and leased; `sync://` runs them at enqueue instead."""
    known_ids: bool = True
    """An id that is known is not enqueued again (law 8); else a retried enqueue can make a duplicate."""
    atomic_enqueue: bool = True
    """One enqueue is all or none; else a lost connection can leave its first jobs, and the error says how many."""
    chosen_ttl: bool = True
    """A lease lasts as long as its fetch or renewal asks; else as long as the queue, or the message, says."""
    settle_anywhere: bool = True
    """Any client that has the lease may settle and renew it; else only the one that fetched it."""
    lasting_leases: bool = True
    """A lease outlives the connection that took it; else one that breaks loses its leases at once, and `lost` tells."""
    exact_refusals: bool = True
    """Which of its three refusals a settlement gets is exact; else any of them may stand for another."""
    keeps_place: bool = True
    """A message that failed, waited for its time or died returns to the place of its enqueue; else to the end."""
    lists_live: bool = True
    """Messages that are not dead are inspected, listed and counted by filters; else only dead letters are, and other
    messages only in `stats`."""
    deletes_live: bool = True
    """Waiting and delayed messages are deleted by any filter; else only all of a queue (or of a queue's states)."""
    exact_stats: bool = True
    """`stats` tells waiting and leased messages apart, for all clients; else only those leased by this client."""
    lists_queues: bool = True
    """`queues` finds every queue that holds a message; else only those that this client was told of."""
    makes_queues: bool = True
    """A queue is there as soon as it is named; else it must have been made, and one that is missing is an error."""
    dead_caps: bool = True
    """Dead letters can be capped by count and age (options `dead_max`, `dead_max_age`)."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of one queue, O(1) however long it is. A count at `cap` means "at least".

    Attributes:
        waiting: Jobs ready to be fetched now (delayed ones that have fallen due count here).
        delayed: Jobs not yet due.
        leased: Jobs that are held, by a pool or a claim; expired leases that nobody has reaped yet included.
        dead: Dead letters, jobs and posted messages.
        oldest: Seconds since the enqueue of the oldest waiting job; None when none waits.
        posted: Messages that no pool fetches (claim_store.py), dead ones left out: free, delayed or claimed.
    """

    waiting: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    oldest: float | None = None
    cap: int | None = None
    posted: int = 0

    @property
    def pending(self) -> int:
        """Every job that is not dead."""
        return self.waiting + self.delayed + self.leased


@dataclass(frozen=True, slots=True)
class ReapPolicy:
    """The reaper's treatment of a message whose lease has expired.

    After the first crash it is fetchable at once, then after a delay drawn uniformly from [0, min(back_off_cap,
    back_off * 2**(crashes - 2))] (full jitter, SEMANTICS "Leases").

    Attributes:
        max_crashes: A crash beyond this many makes a dead letter, reason `crash-limit`; 0 = no limit.
        window: Seconds; when the previous crash of the message is longer ago than this, counting starts at 1 again.
        back_off: Seconds, >= 0, upper edge of the delay after the second crash.
        back_off_cap: Seconds, >= 0.

    Raises:
        ConfigurationError: A number is out of its bounds.
    """

    max_crashes: int = 5
    window: float = 72 * 3600.0
    back_off: float = 1.0
    back_off_cap: float = 60.0

    def __post_init__(self) -> None:
        if type(self.max_crashes) is not int or self.max_crashes < 0:
            raise ConfigurationError(f"max_crashes is a whole number, 0 (no limit) or more, not {self.max_crashes!r}")
        if not self.window > 0:
            raise ConfigurationError(f"the window for crashes is more than 0 seconds, not {self.window!r}")
        for name, seconds in (("back_off", self.back_off), ("back_off_cap", self.back_off_cap)):
            if not 0 <= seconds < math.inf:
                raise ConfigurationError(f"{name} after a crash is 0 seconds or more, not {seconds!r}")

    def ceiling(self, crashes: int) -> float:
        """Return the longest delay, in seconds, after the `crashes`-th crash (1-based)."""
        if crashes <= 1:
            return 0.0
        return min(self.back_off_cap, self.back_off * 2.0 ** min(crashes - 2, 60))

    def is_over(self, crashes: int) -> bool:
        """Return whether `crashes` is past the limit."""
        return 0 < self.max_crashes < crashes


@dataclass(frozen=True, slots=True)
class Reaped:
    """One message that a reap took back. `dead`: it went past `max_crashes`."""

    id: str
    queue: str
    crashes: int
    cause: str | None
    dead: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A message as an administrator sees it. Wall-clock times are Unix seconds on the broker's clock.

    `handler` is "" for a posted message (claim_store.py).
    """

    id: str
    queue: str
    state: State
    handler: str
    priority: int
    attempts: int
    crashes: int
    deliveries: int
    enqueued_at: float
    available_at: float
    body: bytes = field(repr=False)
    reason: str | None = None
    last_error: str | None = None
    cause: str | None = None
    died_at: float | None = None
    expires_at: float | None = None
    """Unix time at which the current lease or claim ends; None when not leased."""
    claim: str | None = None
    """Id of the claim that holds it; None when none does."""
    claims: int = 0
    """How often it was claimed."""
    ends_at: float | None = None
    """Unix time at which the life of a posted message ends; None = never."""
    cursor: str = ""
    """Opaque; `list_messages(after=…)` continues after this message."""

    @property
    def death(self) -> Death | None:
        """`cause`, read: how its last attempt ended that did not end by itself; None = none was killed, or crashed."""
        return Death.from_text(self.cause) if self.cause else None


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A choice of messages. Every field that is set must match; empty means all.

    Attributes:
        queue: Exact name.
        handler: Exact name.
        states: Any of these; empty = any.
        reason: Exact word of a dead letter.
        older_than: Seconds since the enqueue (since its death for a dead letter), at least.
        newer_than: The same, at most.
        text: Case-insensitive substring of the body, the last error or the cause.
        ids: Any of these; empty = any.
    """

    queue: str | None = None
    handler: str | None = None
    states: tuple[State, ...] = ()
    reason: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    text: str | None = None
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the ages. Raises `ValueError`: one is not a number."""
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name)
        for name in ("queue", "handler", "reason", "text"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, storable(getattr(self, name)))
        object.__setattr__(self, "ids", tuple(map(storable, self.ids)))


class Verb(StrEnum):
    """Changes that `bulk` makes to the messages of a filter. Leased ones are never touched."""

    DELETE = "delete"
    RETRY = "retry"
    """Dead only: waiting again under its id; attempts, crashes, last error, reason and cause cleared, expiry lifted."""
    RESUME = "resume"
    """Dead only: waiting again under its id, expiry lifted; attempts, crashes, last error and cause as they were."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message on its way in.

    Attributes:
        given: The producer chose the id.
        due: Unix time, None = now.
        unique_key: Not added when a message with this key is known in its queue; see `enqueue_many`.
        attempts, crashes, deliveries: Its first values: above 0 for a message that comes from another queue.
        last_error, cause: The same.
    """

    id: str
    given: bool
    queue: str
    handler: str
    priority: int
    due: float | None
    body: bytes
    unique_key: str | None = None
    attempts: int = 0
    crashes: int = 0
    deliveries: int = 0
    last_error: str | None = None
    cause: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; `from_dict` is its inverse."""
        return {**asdict(self), "body": self.body.decode()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> NewMessage:
        return cls(**{**fields, "body": fields["body"].encode()})


Existing = Mapping[str, str]
"""Id that was asked for → id of the message that has its unique key already."""

_make_message = maker(NewMessage)


def _ids(messages: Sequence[NewMessage], existing: Existing | None) -> list[str]:
    if not existing:
        return [message.id for message in messages]
    return [existing.get(message.id, message.id) for message in messages]


def once_id(key: str) -> str:
    """Return the id that `enqueue_once` gives the message of this key: 16 lower-case hex characters, like a minted
    one.
    """
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def check_ttl(ttl: float) -> float:
    """Return `ttl`, or raise `ValueError`: a lease lasts longer than 0 seconds and less than a year."""
    if not 0 < check_number(ttl, "ttl") < YEAR_S:
        raise ValueError(f"ttl must be more than 0 seconds and less than a year, not {ttl!r}")
    return float(ttl)


def _delay(delay: float | None) -> float:
    return 0.0 if delay is None else max(0.0, check_number(delay, "delay", nan=True))


class QueueBackend(ABC):
    """A broker. Safe to share between threads; never across a fork: open one after the fork.

    Args:
        signer: Signs what is enqueued; None = unsigned.
        clock: The embedded backends' clock; a broker with a clock of its own uses it only for lease deadlines.

    Attributes:
        credential_variables: Environment variables that this backend's credentials come from, as its library reads
            them. A pool keeps them from its children.
    """

    scheme: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    credential_variables: tuple[str, ...] = ()

    def __init__(self, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None) -> None:
        self.signer = signer or EnvelopeSigner()
        self.clock: Clock = clock or SystemClock()
        self.time = BrokerTime(self.broker_time, self.clock)

    # --- producing ---------------------------------------------------------------------------------

    def enqueue(self, definition: JobDefinition) -> str:
        """Enqueue one job and return its id. See `enqueue_many`."""
        return self.enqueue_many([definition])[0]

    def enqueue_many(self, definitions: Iterable[JobDefinition]) -> list[str]:
        """Enqueue jobs, all or none, in one round trip; return their ids, in order.

        A definition without `identifier` gets a fresh id. If its id is live or dead, that message is left as it is (law
        8). An id given by its producer is known until `ENQUEUE_MEMORY` seconds after its end, so a retried call with
        given ids makes no duplicate.

        A `unique` one whose idempotency key is known in its queue is left out, and the id of the message with that key
        is returned. The message is live or dead, or was acked at most the `keep` of its guards ago (`IDEMPOTENCY_TTL`
        without). A message that is deleted by a person or moves to another queue frees its key at once.

        Raises:
            InvalidJob: A definition is out of bounds, or its body above 1 MiB; nothing was enqueued.
            Unsupported: It needs a capability that the broker lacks; nothing was enqueued.
            BackendUnavailable: Nothing is known. Retry with ids of your own to be sure of no duplicate.
        """
        messages = self._pack_all(definitions)
        return _ids(messages, self._enqueue(messages) if messages else None)

    def enqueue_once(self, definition: JobDefinition, key: str) -> str:
        """Enqueue one job, unless a message was enqueued under this key already; return the id of the one message.

        For work that several processes try and one must do, such as a firing of a schedule. Of any number of callers,
        now and later, one adds a message. The id is derived from the key (`once_id`); a definition's own is not used.

        The key is known for the life of the message and `IDEMPOTENCY_TTL` seconds after its ack (the `keep` of its
        guards, if it had any). In any case it is known for `ENQUEUE_MEMORY` seconds after the end. Without a key store
        it is only as good as a given id (law 8). A `unique` definition also keeps its own idempotency key: if another
        message has that, the id of that message is returned.

        Raises and blocks as `enqueue_many`. Safe to call again.
        """
        return self.enqueue_many_once([(definition, key)])[0]

    def enqueue_many_once(self, jobs: Sequence[tuple[JobDefinition, str]]) -> list[str]:
        """Enqueue each definition once under its key, in one round trip, all or none; return their ids, in order."""
        if not self.capabilities.key_store:
            self.enqueue_many([definition.with_identifier(once_id(key)) for definition, key in jobs])
            return [once_id(key) for _, key in jobs]
        messages = [self._pack_once(definition, once_id(key)) for definition, key in jobs]
        return _ids(messages, self._enqueue(messages) if messages else None)

    def _pack_once(self, definition: JobDefinition, ident: str) -> NewMessage:
        message = self._pack(definition, ident)
        return replace(message, given=True, unique_key=message.unique_key or f"once:{ident}")

    def enqueue_in(self, connection: object, definitions: Iterable[JobDefinition]) -> list[str]:
        """Enqueue jobs within the transaction that is open on the caller's own database connection; return their ids.

        They are there when that transaction commits, and never were when it rolls back. Nothing is committed here. The
        rules of `enqueue_many` hold otherwise.

        Args:
            connection: To the broker's database, of the kind that the backend documents.

        Raises:
            Unsupported: `capabilities.enqueue_in_transaction` is False.
            ConfigurationError: It is not a connection of that kind, or leads to another database.
            InvalidJob: As `enqueue_many`.

        Errors of the database are raised as its driver raises them, for the transaction is the caller's. Blocks for one
        round trip.
        """
        if not self.capabilities.enqueue_in_transaction:
            raise Unsupported(f"{self.scheme}:// cannot enqueue within a transaction of yours: leave `connection` out")
        messages = self._pack_all(definitions)
        return _ids(messages, self._enqueue_in(connection, messages) if messages else None)

    def pack(self, definition: JobDefinition) -> NewMessage:
        """Return the wire form of `definition`, signed; the same rules as `enqueue_many`.

        No I/O, except for the broker's clock, which is asked at most once a minute, and only for definitions with
        `expires_in`. Raises `BackendUnavailable` while it has never answered.
        """
        return self._pack(definition, definition.identifier or secrets.token_hex(8))

    def _pack_all(self, definitions: Iterable[JobDefinition]) -> list[NewMessage]:
        """Pack each; missing ids are drawn together, at a sixth of the cost."""
        chosen = list(definitions)
        drawn = secrets.token_hex(8 * len(chosen))
        return [
            self._pack(definition, definition.identifier or drawn[16 * place : 16 * place + 16])
            for place, definition in enumerate(chosen)
        ]

    def _pack(self, definition: JobDefinition, ident: str) -> NewMessage:
        definition.require(self.capabilities.key_store, self.scheme)
        queue = check_queue(definition.queue or "default")
        now = 0.0 if definition.expires_in is None else self.time.now()
        body = encode(definition, identifier=ident, queue=queue, signer=self.signer, now=now)
        if len(body) > MAX_BODY_BYTES:
            raise InvalidJob(f"the body of job {definition.handler!r} has {len(body)} bytes; at most {MAX_BODY_BYTES}")
        due = definition.scheduled_at.timestamp() if definition.scheduled_at else None
        given = definition.identifier is not None
        unique_key = definition.idempotency_key if definition.unique else None
        return _make_message(ident, given, queue, definition.handler, definition.priority, due, body, unique_key)

    def brought_by(self, lease: JobLease, settlement: Settlement) -> list[NewMessage]:
        """Return the messages that a settlement adds to queues when it is accepted: follow-ups, or what moves. No I/O.

        Raises as `pack`.
        """
        match settlement:
            case Ack(follow_ups=definitions) | Abandon(follow_ups=definitions):
                return [self.pack(definition) for definition in definitions]
            case Move():
                return [self._moved(lease, settlement)]
            case _:
                return []

    def _moved(self, lease: JobLease, move: Move) -> NewMessage:
        envelope = lease.envelope
        body = sign_again(envelope, check_queue(move.queue), self.signer)
        return NewMessage(
            lease.id,
            given=True,
            queue=move.queue,
            handler=envelope.job,
            priority=envelope.priority,
            due=None,
            body=body,
            attempts=lease.attempts + move.attempts,
            crashes=lease.crashes + move.crashes,
            deliveries=lease.deliveries,
            last_error=move.error,
            cause=move.cause,
        )

    # --- consuming ---------------------------------------------------------------------------------

    def fetch(self, queue: str, *, ttl: float = 30.0, wait: float = 0.0) -> JobLease | None:
        """Lease one message, or None. See `fetch_many`."""
        leases = self.fetch_many(queue, limit=1, ttl=ttl, wait=wait)
        return leases[0] if leases else None

    def fetch_many(
        self, queue: str, *, limit: int, ttl: float = 30.0, wait: float = 0.0, fetch_id: str | None = None
    ) -> list[JobLease]:
        """Lease up to `limit` messages, in the order (priority, enqueue sequence), in one atomic step.

        Takes ready and due messages only. Each gets a fresh owner token, a deadline `ttl` seconds from now and
        deliveries + 1. The deadline in the lease is counted from before the request was sent. A body of more than
        MAX_BODY_BYTES is leased and not brought: `OVERSIZED` stands for it, and `envelope` refuses that.

        Args:
            queue: Its name.
            limit: 1 to 1,000,000.
            ttl: Seconds, > 0; checked before anything else.
            wait: Seconds to wait for the first message when there is none; 0 or less = do not wait.
            fetch_id: A second call with the same id within 60 s returns the leases that still run under this id, and
                leases nothing new. So a lost reply freezes nothing.

        Raises:
            ValueError: ttl, limit or wait is not such a number.
            BackendUnavailable: Nothing is known; call again with the same fetch id.

        Blocks for `wait` seconds at most, plus one round trip.
        """
        check_ttl(ttl)
        check_queue(queue)
        limit = min(check_count(limit, "limit", 1, sys.maxsize), MAX_FETCH)
        ident = fetch_id or secrets.token_hex(8)
        give_up = self.clock.mono() + min(YEAR_S, check_number(wait, "wait"))
        while True:
            leases = self._fetch(queue, limit, ttl, ident)
            remaining = give_up - self.clock.mono()
            if leases or remaining <= 0:
                return leases
            self.wait_any([queue], remaining)

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Wait until one of `queues` may have something to fetch, and return it; None after `timeout` seconds.

        None, too, within half a second of `close` in another thread, and never an error for that.

        A hint: it may be wrong, but must not miss a message, or a delay that falls due, for longer than 0.5 s. Never a
        busy loop.
        """
        for queue in queues:
            check_queue(queue)
        return self._wait_any(queues, min(YEAR_S, check_number(timeout, "timeout")))

    # --- settling ----------------------------------------------------------------------------------

    def ack(self, lease: JobLease) -> Settled:
        """Done: remove the message."""
        return self._settle_one(lease, Ack())

    def nack(self, lease: JobLease, delay: float | None = None, error: str | None = None) -> Settled:
        """Fail: the message comes back after `delay` seconds (None or below 0 = now), attempts + 1."""
        return self._settle_one(lease, Nack(_delay(delay), error))

    def abandon(self, lease: JobLease, reason: str = "", error: str | None = None) -> Settled:
        """Give up: the message becomes a dead letter with this reason.

        Attempts + 1 if it ends a failed attempt: `failed`, `unrecoverable`, `timeout` or `memory-limit`.
        """
        return self._settle_one(lease, Abandon(reason, error))

    def release(self, lease: JobLease, delay: float | None = None) -> Settled:
        """Give the message back unharmed, after `delay` seconds (None or below 0 = now), to its old place, as one that
        was begun.

        See `Release.begun`.
        """
        return self._settle_one(lease, Release(_delay(delay)))

    def forfeit(self, lease: JobLease, cause: str) -> Settled:
        """End the lease now without a verdict, and keep `cause` beside it; the reaper does the rest.

        Raises `Unsupported` where `capabilities.forfeit` is False.
        """
        return self._settle_one(lease, Forfeit(cause))

    def settle_many(
        self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str | None = None
    ) -> list[Settled]:
        """Settle each message in one atomic conditional step; one round trip, one answer each, in order.

        For each: NOT_IN_FLIGHT, EXPIRED, NOT_OWNER, in this precedence, and nothing is changed; else OK. The steps
        are atomic one by one; where the broker can, the whole call is.

        Args:
            call_id: Repeating a call with the same id within 60 s answers as the first time did, with ALREADY for
                OK, and changes nothing. None = minted here. A single verb's id is verb + owner token.

        Raises:
            BackendUnavailable: Nothing is known; repeat with the same call id while the lease runs.

        Blocks for one round trip.
        """
        if not settlements:
            return []
        return self._settle(settlements, call_id or secrets.token_hex(8))

    def _settle_one(self, lease: JobLease, settlement: Settlement) -> Settled:
        verb = type(settlement).__name__.lower()
        return self.settle_many([(lease, settlement)], call_id=f"{verb}:{lease.owner_token}")[0]

    def ticket(self, lease: JobLease) -> Ticket:
        """Return what a child needs to ack this one message in its handler's transaction, and nothing more.

        It includes the idempotency key of a guarded lease, which that ack marks done. JSON-able. Its `ack` names a
        function `module:name`, which takes the handler's connection, the ticket and follow-up messages (`NewMessage`).
        Within the open transaction that removes the message, enqueues the follow-ups and remembers the call `ack:<owner
        token>`, so that a later `ack(lease)` is answered ALREADY. It raises `LeaseLost` when the lease has ended, so
        that the transaction rolls back. It returns a function that tells whether the transaction is still open.

        Raises `Unsupported` where `capabilities.ack_in_transaction` is False.
        """
        del lease
        raise Unsupported(f"{self.scheme}:// cannot ack within a transaction of yours: leave ack_in_transaction out")

    # --- holding -----------------------------------------------------------------------------------

    def renew(self, lease: JobLease, ttl: float) -> JobLease:
        """Hold the message for `ttl` seconds more, counted from now.

        Args:
            lease: From `fetch` or the last `renew`.
            ttl: Seconds, > 0. A broker with a fixed lease uses its own: read `expires_at`.

        Returns:
            The lease with its new `expires_at`, taken from before the request was sent.

        Raises:
            LeaseLost: The message is settled, expired, or somebody else holds it. Do not settle it.
            BackendUnavailable: Nothing is known; the old `expires_at` stands. Safe to call again.
        """
        renewed = self.renew_many([lease], ttl)[0]
        if renewed is None:
            raise LeaseLost(f"the lease of message {lease.id} in queue {lease.queue!r} has ended")
        return renewed

    def renew_many(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Renew each lease; None where it is lost. One round trip. Raises as `renew`, without LeaseLost."""
        check_ttl(ttl)
        return self._renew(leases, ttl) if leases else []

    def reap(self, queue: str, policy: ReapPolicy | None = None) -> list[Reaped]:
        """Give back the messages whose lease has expired: each expiry is charged once, attempts untouched.

        They go to their old place, after the policy's back-off, or to the dead letters past `max_crashes` with reason
        `crash-limit`. Safe with any number of reapers; the condition is repeated in the write. At most 1,000 a call.
        Where `capabilities.native_reap` is True the same happens to each such message when it is fetched next.
        """
        return self._reap(check_queue(queue), policy or ReapPolicy(), None)

    def reap_expired(self, queue: str, visibility_timeout: float | None = None) -> int:
        """Reap with the default policy; return the number of messages given back.

        With `visibility_timeout` (seconds, > 0) also those whose lease was taken or renewed more than that long ago.
        """
        if visibility_timeout is not None:
            check_ttl(visibility_timeout)
        return len(self._reap(check_queue(queue), ReapPolicy(), visibility_timeout))

    def lost(self) -> list[JobLease]:
        """Return leases that ended early since the last call, because the connection that owned them broke.

        Nothing where `capabilities.lasting_leases` is True. No I/O; a pool asks often, and ends the attempts.
        """
        return []

    @property
    def keys(self) -> KeyStore:
        """The broker's key store.

        Raises `Unsupported` where `capabilities.key_store` is False.
        """
        raise Unsupported(f"{self.scheme}:// keeps no keys (Capabilities.key_store): choose a backend with a key store")

    @property
    def claims(self) -> ClaimStore:
        """The broker's part for claims and posted messages.

        Raises `Unsupported` where `capabilities.claims` is False.
        """
        raise Unsupported(f"{self.scheme}:// has no claims (Capabilities.claims): choose a backend that has them")

    # --- looking and tending -----------------------------------------------------------------------

    @abstractmethod
    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue; O(1), or capped."""

    @abstractmethod
    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted."""

    @abstractmethod
    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """Return one page of messages in enqueue order, `limit` 1..1000; go on with the last one's `cursor` as
        `after`.
        """

    @abstractmethod
    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """Return how many messages match, counted up to `cap`: an answer of `cap` means "at least"."""

    @abstractmethod
    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages, oldest first; how many it changed. Call again until 0."""

    @abstractmethod
    def inspect(self, ident: str) -> Message | None:
        """Return the message with this id, live or dead; None when it is gone or never was."""

    def ping(self) -> None:
        """Ask the broker for a sign of life. Raises BackendUnavailable. Blocks for one round trip."""
        self.stats("ping")

    def prepare(self) -> None:
        """Make what the broker needs before its first message (tables), or check that it is there.

        Safe to call again, and at the same time from several processes.

        Raises `BackendUnavailable`, or `ConfigurationError` when the broker's settings or rights forbid it.
        """
        self.ping()

    def diagnose(self) -> list[Finding]:
        """Check which of the broker's settings can lose jobs or slow them down, good findings included; [] = nothing
        known.

        Raises BackendUnavailable. Blocks for a few round trips. For `jobpool doctor`, and once at the start of a pool.
        """
        return []

    def cautions(self) -> list[str]:
        """Return the sentences of what `diagnose` finds to be bad, each with its mend. Raises and blocks as that."""
        return cautions_of(self.diagnose())

    def broker_time(self) -> float | None:
        """Return Unix time on the broker's own clock; None when that is this machine's.

        Raises BackendUnavailable. Blocks for one round trip.
        """
        return None

    def close(self) -> None:  # noqa: B027 - a backend without connections has nothing to close
        """Close every connection; safe to call twice. Leases are left to expire; threads that wait come back."""

    # --- for a broker to fill in: each one atomic step, arguments already checked --------------------

    @abstractmethod
    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing | None:
        """Add those that are not known; for each left out because its unique key is known: its id → the known id."""

    def _enqueue_in(self, connection: object, messages: Sequence[NewMessage]) -> Existing | None:
        raise NotImplementedError  # filled in by brokers that set `enqueue_in_transaction`

    @abstractmethod
    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]: ...

    @abstractmethod
    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None: ...

    @abstractmethod
    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]: ...

    @abstractmethod
    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]: ...

    @abstractmethod
    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]: ...
