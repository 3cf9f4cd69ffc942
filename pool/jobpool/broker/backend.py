"""The contract between jobpool and a broker. Its docstrings are the specification; one suite tests them all.

`QueueBackend` checks arguments, mints ids and waits, once for all brokers; its parts (parts.py) do the rest, each call
in one atomic step. Times are seconds. Wall-clock times are Unix time on the *broker's* clock; lease deadlines are on
this machine's CLOCK_BOOTTIME. Unless it says otherwise, a call blocks for one round trip, and may raise
`BackendUnavailable`: nothing is known. A number out of its bounds, or a foreign cursor, is a `ValueError`.

A message is at every moment in exactly one state:

    enqueue ──► WAITING ◄──────────────┐            due is inclusive: available_at <= now
       │           │ fetch             │ release, reap, nack(0)
       ▼           ▼                   │
    DELAYED     LEASED ── nack(d) ─► DELAYED
                   │  └── abandon, reap past max_crashes ──► DEAD ── retry ──► WAITING
                   └── ack ──► gone
"""

from __future__ import annotations

import math
import secrets
import sys
import threading
import time
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from jobpool.broker import control, parts, tracking
from jobpool.broker.broker_time import BrokerTime
from jobpool.broker.claim_store import ClaimStore
from jobpool.broker.finding import Finding
from jobpool.broker.key_store import KeyStore
from jobpool.broker.packing import brought_by, edit_batches, ids_of, pack, pack_all, pack_batch, pack_once
from jobpool.broker.values import (
    LOOK_INTERVAL_S,
    MAX_FETCH,
    MAX_PAGE,
    Capabilities,
    Edit,
    Edited,
    Message,
    MessageFilter,
    NewMessage,
    QueueStats,
    Reaped,
    ReapPolicy,
    Ticket,
    Verb,
    check_ttl,
    check_wait,
    once_id,
    read_cursor,
    settle_delay,
)
from jobpool.clock import Clock, SystemClock
from jobpool.errors import OUTAGES, ConfigurationError, LeaseLost, Unsupported
from jobpool.message.batches import NO_BATCHES, BatchCall, BatchStatus
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool.message.lease import JobLease
from jobpool.message.names import check_identifier, check_queue, is_queue, storable
from jobpool.message.results import JobStatus
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement, brings
from jobpool.message.signing import EnvelopeSigner
from jobpool.message.units import check_int


class QueueBackend(ABC):  # an ABC for its `register`: a wrapper of a backend counts as one
    """A broker. Safe to share between threads; never across a fork: open one after the fork.

    A subclass sets the parts in its `__init__`, or defines them as methods. `signer` None = unsigned. `clock`: the
    embedded backends' clock; a broker with a clock of its own uses it only for lease deadlines.
    """

    scheme: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    credential_variables: tuple[str, ...] = ()  # of the environment: a pool keeps these from its children
    only_queue: str | None = None  # the one queue that the URL is good for; None = any
    borrow: Callable[[], QueueBackend] | None = None  # opens the broker of the option `state`; None = it has none

    _enqueue: parts.Enqueue
    _enqueue_in: parts.EnqueueIn
    _fetch: parts.Fetch
    _wait_any: parts.WaitAny
    _settle: parts.Settle
    _renew: parts.Renew
    _reap: parts.Reap
    _inspector: parts.Inspector
    _bulk: parts.Bulk
    _edits: parts.Edits | None = None  # None: nothing that waits can be edited
    _evicted: Callable[[str], int] | None = None  # None: dead letters are not capped
    _keys: KeyStore | None = None
    _results: parts.Results | None = None
    _batches: parts.Batches | None = None
    _claims: ClaimStore | None = None
    _lent: QueueBackend | None = None
    _closers: Sequence[Callable[[], object]] = ()  # called in this order by `close`

    def __init__(self, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None) -> None:
        self.signer = signer or EnvelopeSigner()
        self.clock: Clock = clock or SystemClock()
        self._lending = threading.Lock()
        self._closing = threading.Event()
        self.time = BrokerTime(self.broker_time, self.clock)

    @classmethod
    def from_url(
        cls, url: str, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None, **options: Any
    ) -> Self:
        """Open what `url` names; options there (`?timeout=5`) or by keyword, which win.

        Raises `ConfigurationError`: the URL or an option cannot be right, or the server is not one that can be used.
        The text names the mend, and never a password.
        """
        options.pop("runner", None)  # only sync:// has a use for one
        return cls._open(url, options, signer=signer, clock=clock)

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        del url, options, common  # `common`: arguments of `QueueBackend`
        raise ConfigurationError(f"{cls.__module__}:{cls.__qualname__} has no _open, which opens its URL")

    @classmethod
    def missing(cls, url: str) -> str:  # noqa: ARG003 - most brokers are there, or do not answer
        """Return the sentence that there is no database at `url` yet, which `from_url` would make; "" = there is.

        Raises `ConfigurationError` as `from_url`.
        """
        return ""

    # --- producing ---------------------------------------------------------------------------------

    def enqueue(self, definition: JobDefinition) -> str:
        """Enqueue one job; return its id. See `enqueue_many`."""
        return self.enqueue_many([definition])[0]

    def enqueue_many(self, definitions: Iterable[JobDefinition]) -> list[str]:
        """Enqueue jobs, all or none, in one round trip; return their ids, in order.

        A definition without `identifier` gets a fresh id. If its id is live or dead, that message is left as it is (law
        8). A given id is known until `ENQUEUE_MEMORY` seconds after its end, so a repeated call with given ids makes no
        duplicate.

        A `unique` one whose idempotency key is known in its queue is left out, and the id of the message with that key
        is returned. The message is live or dead, or was acked at most the `keep` of its guards ago (`IDEMPOTENCY_TTL`
        without). A message that is deleted by a person or moves to another queue frees its key at once.

        Raises, with nothing enqueued, `InvalidJob` (a definition is out of bounds, or its body above 1 MiB) and
        `Unsupported` (the broker lacks a capability).
        """
        return self._add(pack_all(self, definitions))

    def _add(self, messages: list[NewMessage]) -> list[str]:
        return ids_of(messages, self._enqueue(messages) if messages else None)

    def enqueue_once(self, definition: JobDefinition, key: str) -> str:
        """Enqueue one job, unless a message was enqueued under this key already; return the id of the one message.

        Of any number of callers, now and later, one adds a message, such as a firing of a schedule. Its id is derived
        from the key (`once_id`), in place of the definition's own. Safe to call again; raises as `enqueue_many`.

        The key is known for the life of the message and `ENQUEUE_MEMORY` seconds more. After an ack it is known for
        `IDEMPOTENCY_TTL` (the `keep` of its guards, if any). Without a key store it is only as good as a given id (law
        8). A `unique` definition also keeps its own idempotency key: if another message has that, its id is returned.
        """
        return self.enqueue_many_once([(definition, key)])[0]

    def enqueue_many_once(self, jobs: Sequence[tuple[JobDefinition, str]]) -> list[str]:
        """Enqueue each definition once under its key, in one round trip, all or none; return their ids, in order."""
        if not self.capabilities.key_store:
            self.enqueue_many([definition.with_identifier(once_id(key)) for definition, key in jobs])
            return [once_id(key) for _, key in jobs]
        return self._add([pack_once(self, definition, key) for definition, key in jobs])

    def enqueue_in(self, connection: object, definitions: Iterable[JobDefinition]) -> list[str]:
        """Enqueue jobs within the transaction that is open on the caller's own connection to the broker's database.

        Nothing is committed here. Otherwise as `enqueue_many`, but errors of the database are raised as its driver
        raises them. Raises `Unsupported` where `capabilities.transactions` is False, and `ConfigurationError`: the
        connection is not of the kind that the backend documents, or leads to another database.
        """
        if not self.capabilities.transactions:
            raise Unsupported(f"{self.scheme}:// cannot enqueue within a transaction of yours: leave `connection` out")
        messages = pack_all(self, definitions)
        return ids_of(messages, self._enqueue_in(connection, messages) if messages else None)

    def pack(self, definition: JobDefinition) -> NewMessage:
        """Return the wire form of `definition`, signed; the same rules as `enqueue_many`.

        No I/O, for a pool's loop calls it: `expires_in` counts by the last answer of the broker's clock.
        """
        return pack(self, definition, definition.identifier or secrets.token_hex(8), clock=self.time.last)

    # --- consuming ---------------------------------------------------------------------------------

    def fetch(self, queue: str, *, ttl: float = 30.0, wait: float = 0.0) -> JobLease | None:
        """Lease one message, or None. See `fetch_many`."""
        return next(iter(self.fetch_many(queue, limit=1, ttl=ttl, wait=wait)), None)

    def fetch_many(
        self, queue: str, *, limit: int, ttl: float = 30.0, wait: float = 0.0, fetch_id: str | None = None
    ) -> list[JobLease]:
        """Lease up to `limit` messages, in the order (priority, enqueue sequence), in one atomic step.

        Takes ready and due messages only. Each gets a fresh owner token, a deadline `ttl` seconds from now and
        deliveries + 1. The deadline in the lease is counted from before the request was sent. A body of more than
        MAX_BODY_BYTES is leased and not brought: `OVERSIZED` stands for it, and `envelope` refuses that.

        Args:
            limit: From 1; above 1,000,000 counts as that.
            ttl: Seconds, > 0; checked before anything else.
            wait: Seconds to wait for the first message when there is none; 0 or less = do not wait.
            fetch_id: A second call with the same id within 60 s returns the leases that still run under this id, and
                leases nothing new. So a lost reply freezes nothing.

        Raises `ValueError`: ttl, limit or wait is not such a number. Blocks for `wait` more.
        """
        check_ttl(ttl)
        check_queue(queue)
        limit = min(check_int(limit, "limit", 1, sys.maxsize), MAX_FETCH)
        ident = fetch_id or secrets.token_hex(8)
        give_up = self.clock.mono() + check_wait(wait, "wait")
        while True:
            leases = self._fetch(queue, limit, ttl, ident)
            remaining = give_up - self.clock.mono()
            if leases or remaining <= 0:
                return leases
            if self.wait_any([queue], remaining) is None:  # the time is over, or this was closed
                give_up = -math.inf

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Wait until one of `queues` may have something to fetch, and return it; None after `timeout` seconds.

        Of several that have something now, it is the first, where leases are `Leases.OURS`.
        A hint: it may be wrong, but must not miss a message, or a delay that falls due, for longer than 0.5 s. Never a
        busy loop. None, too, and no error, within half a second of `close` in another thread.
        """
        for queue in queues:
            check_queue(queue)
        seconds = check_wait(timeout, "timeout")
        if queues:
            return self._wait_any(queues, seconds)
        self._closing.wait(seconds)
        return None

    # --- settling ----------------------------------------------------------------------------------

    def ack(self, lease: JobLease) -> Settled:
        """Done: remove the message."""
        return self._settle_one(lease, Ack())

    def nack(self, lease: JobLease, delay: float | None = None, error: str | None = None) -> Settled:
        """Fail: the message comes back after `delay` seconds (None or below 0 = now), attempts + 1."""
        return self._settle_one(lease, Nack(settle_delay(delay), error))

    def abandon(self, lease: JobLease, reason: str = "", error: str | None = None) -> Settled:
        """Give up: the message becomes a dead letter with this reason.

        Attempts + 1 if it ends a failed attempt: `failed`, `unrecoverable`, `timeout` or `memory-limit`.
        """
        return self._settle_one(lease, Abandon(reason, error))

    def release(self, lease: JobLease, delay: float | None = None) -> Settled:
        """Give the message back to its old place, unharmed, as begun (`Release.begun`); `delay` as `nack`."""
        return self._settle_one(lease, Release(settle_delay(delay)))

    def forfeit(self, lease: JobLease, cause: str) -> Settled:
        """End the lease now without a verdict, and keep `cause` beside it; the reaper does the rest."""
        return self._settle_one(lease, Forfeit(cause))

    def settle_many(self, settlements: parts.Settlements, call_id: str | None = None) -> list[Settled]:
        """Settle each message in one atomic conditional step; return one answer each, in order.

        For each: NOT_IN_FLIGHT, EXPIRED, NOT_OWNER, in this precedence, and nothing is changed; else OK. The steps
        are atomic one by one; where the broker can, the whole call is.

        Repeating a call with the same id within 60 s answers as the first time did, with ALREADY for OK, and changes
        nothing. Do that after `BackendUnavailable`, while the lease runs. A single verb's id is verb + owner token.
        """
        if not settlements:
            return []
        brought = {place: brought_by(self, *pair) for place, pair in enumerate(settlements) if brings(pair[1])}
        return self._settle(settlements, brought, call_id or secrets.token_hex(8))

    def _settle_one(self, lease: JobLease, settlement: Settlement) -> Settled:
        verb = type(settlement).__name__.lower()
        return self.settle_many([(lease, settlement)], call_id=f"{verb}:{lease.owner_token}")[0]

    def ticket(self, lease: JobLease) -> Ticket:
        """Return what a child needs to ack this one message in a transaction of its handler's own; values of JSON.

        Its `ack` names a function `module:name`, which takes the handler's connection, the ticket and follow-ups
        (`NewMessage`). Within the open transaction that removes the message, marks the key of a guarded lease done and
        enqueues the follow-ups. It remembers the call `ack:<owner token>`, so that a later `ack` is answered ALREADY.
        It raises `LeaseLost` when the lease has ended, so that the transaction rolls back, and returns a function that
        tells whether that is still open. Raises `Unsupported` as `enqueue_in`.
        """
        del lease
        raise Unsupported(f"{self.scheme}:// cannot ack within a transaction of yours: leave ack_in_transaction out")

    # --- holding -----------------------------------------------------------------------------------

    def renew(self, lease: JobLease, ttl: float) -> JobLease:
        """Hold the message for `ttl` seconds (> 0) from before the request; return the lease with its `expires_at`.

        A broker with a fixed lease uses its own ttl. Safe to call again. Raises `LeaseLost`: the message is settled,
        expired, or somebody else holds it. Do not settle it.
        """
        renewed = self.renew_many([lease], ttl)[0]
        if renewed is None:
            raise LeaseLost(f"the lease of message {lease.id} in queue {lease.queue!r} has ended")
        return renewed

    def renew_many(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Renew each lease; None where it is lost."""
        check_ttl(ttl)
        return self._renew(leases, ttl) if leases else []

    def reap(self, queue: str, policy: ReapPolicy | None = None) -> list[Reaped]:
        """Give back the messages whose lease has expired: each expiry is charged once, attempts untouched.

        They go to their old place, after the policy's back-off, or to the dead letters past `max_crashes` with reason
        `crash-limit`. Safe with any number of reapers; the condition is repeated in the write. At most 1,000 a call.
        Where the broker frees leases itself (`Leases.BROKER`) the same happens to each message when it is fetched next.
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
        """Return leases that ended since the last call because their connection broke (`Leases.CONNECTION`). No I/O."""
        return []

    @property
    def keys(self) -> KeyStore:
        """The broker's key store. Raises `Unsupported` where `capabilities.key_store` is False."""
        if self._keys is None:
            raise self._lacks("keeps no keys", "with a key store")
        return self._keys

    @property
    def claims(self) -> ClaimStore:
        """The broker's part for claims and posted messages. Raises as `keys`."""
        if self._claims is None:
            raise self._lacks("has no claims", "that has them")
        return self._claims

    @property
    def control_keys(self) -> KeyStore:
        """The key store for records of pauses, pools and cancels: the broker's own, or the one that was lent.

        Raises `Unsupported` where there is neither.
        """
        keys = self._control()._keys
        if keys is None:
            raise self._lacks("keeps no keys", "with a key store, or lend it that of another by ?state=URL")
        return keys

    def control_time(self) -> float:
        """Return Unix time on the clock of `control_keys`; blocks and raises as `BrokerTime.now`."""
        return self._control().time.now()

    def _control(self) -> QueueBackend:
        """Return the broker of `control_keys`; open the one to `borrow` from if it did not answer so far."""
        with self._lending:  # else threads that ask at once each open one
            if self._lent is None and self.borrow is not None:
                self.lend(self.borrow())
        return self._lent or self

    def lend(self, state: QueueBackend) -> None:
        """Use the key store of `state` for `control_keys`, and close it with this backend; at once if it is refused.

        Raises `ConfigurationError`: this broker keeps keys of its own, or `state` keeps none.
        """
        if self.capabilities.key_store or not state.capabilities.key_store:
            state.close()
            which = "keeps keys of its own" if self.capabilities.key_store else f"cannot use {state.scheme}:// as state"
            raise ConfigurationError(f"{self.scheme}:// {which}: leave the option state out, or name one with keys")
        self._lent = state
        self.credential_variables = tuple({*self.credential_variables, *state.credential_variables})

    @property
    def has_control(self) -> bool:
        """Return whether there are `control_keys`."""
        return any(each is not None for each in (self._keys, self._lent, self.borrow))

    def _lacks(self, lack: str, choice: str) -> Unsupported:
        return Unsupported(f"{self.scheme}:// {lack} (Capabilities.key_store): choose a backend {choice}")

    # --- looking and tending -----------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue; O(1), or capped."""
        return self._inspector.stats(queue) if is_queue(queue) else QueueStats()

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted."""
        return self._inspector.queues()

    def foreign_queues(self) -> list[str]:
        """Return queues that seem to be other programs' alone, so that nobody deletes from them without their name."""
        return []

    def list_messages(
        self,
        where: MessageFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 50,
        largest: int = MAX_BODY_BYTES,
    ) -> list[Message]:
        """Return a page of messages, `limit` 1 to 1,000, in enqueue order, after the one with the cursor `after`.

        `OVERSIZED` stands for a body of more than `largest` bytes; 0 = for each body.
        """
        first, where = read_cursor(after), where or MessageFilter()
        check_int(limit, "limit", 1, MAX_PAGE)
        found = [] if where.is_nowhere else self._inspector.page(where, first, limit, largest)
        return [replace(each, body=OVERSIZED) if len(each.body) > largest else each for each in found]

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """Return how many messages match, counted up to `cap` (from 1): an answer of `cap` means "at least"."""
        check_int(cap, "cap", 1, sys.maxsize)
        return 0 if where.is_nowhere else self._inspector.count(where, cap)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to at most `limit` matching messages, oldest first; return how many changed. Call again until 0.

        No earlier request to cancel it ends a letter that is raised. Where there is one, this takes a second.
        """
        if verb is Verb.CANCEL and not self.capabilities.keeps_records:
            why = "makes no dead letter of a job that waits (Capabilities.keeps_records)"
            raise Unsupported(f"{self.scheme}:// {why}: `jobpool purge` deletes all of a queue")
        check_int(limit, "limit", 1, sys.maxsize)
        if verb in (Verb.RETRY, Verb.RESUME) and self.has_control:
            with suppress(*OUTAGES):  # of a lent key store, which must not hold this up
                control.unmark_dead(self, where)
        states = tuple(state for state in verb.meets if not where.states or state in where.states)
        return 0 if where.is_nowhere or not states else self._bulk(replace(where, states=states), verb, limit)

    def edit_many(self, edits: Sequence[Edit], call_id: str | None = None) -> list[Edited]:
        """Edit messages that wait or are delayed, each in one atomic conditional step; return an answer each, in order.

        CHANGED: the message is not as it was seen, and is left as it is. DUPLICATE: the same, because the new queue
        knows its unique key. A move takes the key along. Repeating a call with the same id within 60 s answers as the
        first time did, and changes nothing. Waiters of the new queue are woken.

        Raises as `check_edits`.
        """
        make = self.check_edits(moves=any(edit.queue != edit.seen.queue for edit in edits))
        call = call_id or secrets.token_hex(8)
        batches = enumerate(edit_batches(edits))
        return [answer for number, batch in batches for answer in make(batch, f"{call}+{number}")]

    def check_edits(self, *, moves: bool) -> parts.Edits:
        """Return the part that edits. Raises `Unsupported`: the broker has none, or cannot move what waits."""
        if self._edits is None or not self.capabilities.keeps_records:
            raise Unsupported(f"{self.scheme}:// changes no job that waits: enqueue it again as it should be")
        if moves and not self.capabilities.atomic_across_queues:
            why = "moves no job that waits to another queue (Capabilities.atomic_across_queues)"
            raise Unsupported(f"{self.scheme}:// {why}: cancel it, and enqueue it there")
        return self._edits

    def inspect(self, ident: str) -> Message | None:
        """Return the message with this id, live or dead; None when it is gone or never was."""
        return self._inspector.inspect(storable(ident))

    def status(self, ident: str) -> JobStatus:
        """Return the state of one job; a few round trips, O(1). See `tracking.py`."""
        return tracking.statuses(self, [ident])[ident]

    def result(self, ident: str, timeout: float | None = None) -> Any:
        """Return what a job's handler returned, as soon as it did. See `tracking.result`."""
        return tracking.result(self, ident, timeout)

    def wait(self, idents: Iterable[str], timeout: float | None = None) -> list[JobStatus]:
        """Wait until these jobs have ended; return their states, in order. See `tracking.wait`."""
        return tracking.wait(self, list(idents), timeout)

    def cancel(self, ident: str) -> control.Cancel:
        """Cancel a job that waits, is delayed or runs; return the answer. See `control.cancel`."""
        return control.cancel(self, [ident])[ident]

    @property
    def batches(self) -> parts.Batches:
        """The part that counts members of batches. Raises `Unsupported` where the broker has none."""
        if self._batches is None:
            raise Unsupported(NO_BATCHES.format(self.scheme))
        return self._batches

    def call_batch(
        self, call: BatchCall, jobs: Sequence[JobDefinition] = (), *, cancel_wait: float = control.CANCEL_WAIT_S
    ) -> BatchStatus | None:
        """Carry out a call about a batch; return its counts if it gets them. `jobs`: the callbacks of a new one.

        A cancel waits for `cancel_wait` seconds for members that run. Raises as `batches`, `parts.Batches.open` and
        `pack`.
        """
        check_identifier(call.id)
        match call.verb:
            case "open":
                self.batches.open(pack_batch(self, call, jobs))
            case "close":
                self.batches.close(call.id)
            case "cancel":
                control.cancel(self, [call.id], wait=cancel_wait)
            case "get":
                return self.find_batch(call.id)
        return None

    def find_batch(self, ident: str) -> BatchStatus | None:
        """Return the counts of a batch; None: there is none, or none any more."""
        return self._batches.get(storable(ident)) if self._batches else None

    def kept(self, idents: Sequence[str]) -> dict[str, bytes]:
        """Return the kept results of those of these jobs that have one."""
        storables = [ident for ident in idents if ident == storable(ident)]  # no broker has the others
        return self._results.get(storables) if self._results and storables else {}

    def wait_ended(self, idents: Sequence[str], timeout: float) -> None:
        """Wait until one of these jobs may have ended, half a second at most. A hint, as of `wait_any`."""
        if self._results and idents:
            self._results.wait(idents, min(timeout, LOOK_INTERVAL_S))
        else:
            time.sleep(min(timeout, LOOK_INTERVAL_S))

    def evicted(self, queue: str) -> int:
        """Return how many dead letters of a queue its caps (`dead_max`, `dead_max_age`) have removed, ever."""
        return self._evicted(queue) if self._evicted and is_queue(queue) else 0

    def ping(self) -> None:
        """Ask the broker for a sign of life."""
        self.stats("ping")

    def prepare(self) -> None:
        """Make what the broker needs before its first message (tables), or check that it is there.

        Several processes may do so at once. Raises `ConfigurationError` when the broker's settings or rights forbid it.
        """
        self.ping()

    def diagnose(self) -> list[Finding]:
        """Return findings, good and bad, of what the broker's settings can lose or slow down. A few round trips."""
        return []

    def broker_time(self) -> float | None:
        """Return Unix time on the broker's own clock; None when that is this machine's."""
        return None

    def close(self) -> None:
        """Close every connection; safe to call twice. Leases are left to expire; waits end within half a second."""
        self._closing.set()
        for close in self._closers:
            close()
        if self._lent is not None:
            self._lent.close()
