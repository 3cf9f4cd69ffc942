"""Values that cross the contract between jobpool and a broker, and their bounds. Times are seconds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, force_setattr

from jobpool.errors import LONGEST_WAIT_S, ConfigurationError
from jobpool.message.death import Death
from jobpool.message.names import is_queue, storable
from jobpool.message.printable import hides
from jobpool.message.units import check_number

REMEMBER_CALLS = 60.0  # seconds for which a settle call's or a fetch's id is remembered (law 2, law 1)
ENQUEUE_MEMORY = 600.0  # seconds after its end for which an id that a producer gave is still known (law 8)
MAX_FETCH = 1_000_000  # messages, however many are asked for
MAX_PAGE = 1000  # messages in one page of a list
REAP_LIMIT = 1000  # messages that one reap returns at most: a full answer means that there may be more
LOOK_INTERVAL_S = 0.5  # between two looks of a wait that nothing wakes
YEAR_S = 366 * 86400.0

Ticket = dict[str, str | int]  # see `QueueBackend.ticket`


class State(StrEnum):
    """The state of a message."""

    WAITING = "waiting"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"


UNHELD = (State.WAITING, State.DELAYED)
LIVE = (*UNHELD, State.LEASED)


class Leases(StrEnum):
    """Kinds of leases; see `Capabilities.leases`. Falsy without any."""

    OURS = "as asked"
    BROKER = "by the broker"
    """`reap` sets the policy by which crashes are charged at the next fetch, and returns the charges since the last."""
    CONNECTION = "by connection"
    """As `BROKER`; `lost` tells which leases went with a connection."""
    NONE = ""
    """Jobs run at enqueue, and no message is kept."""


class Capabilities(Struct, frozen=True):
    """The capabilities of a broker. The first sentence below a field is its row in the table of docs/backends.md."""

    leases: Leases = Leases.OURS
    """Length of a lease. *As asked*: by fetch or renewal; a reaper gives the message back, and any client may settle
    it. *By the broker*: the queue or the message says how long. Then the broker gives it back, and its crash is charged
    at the next fetch; only the client that fetched may settle. *By connection*: the same, and a connection that breaks
    loses its leases at once.
    """
    keeps_records: bool = True
    """Messages change in place: edits, purges by filters, caps of dead letters. Each change is one step. Repeated calls
    and known ids are recognised, so they change nothing, and a message keeps its place. Else a change puts a copy
    first, and a crash between the two leaves a duplicate. A lost connection can leave the first jobs of one enqueue. A
    message returns to the end of its queue. A refusal of a settlement may stand for another, and live messages are
    deleted by whole queues only.
    """
    key_store: bool = False
    """Idempotency keys, locks, unique jobs, shared limits, results, claims, posted messages. `QueueBackend.keys` and
    `claims`. Pauses of queues, records of pools and cancels of jobs too, unless the option `state=URL` lends another
    broker's key store for these.
    """
    transactions: bool = False
    """Enqueues and acks in a transaction of your own. By `enqueue_in`, and a handler's `ticket`."""
    atomic_across_queues: bool = True
    """One call over several queues (follow-ups, moves) is one step. A given id is known in all of them. Else it goes
    queue by queue, and no edit moves a message.
    """
    exact_counts: bool = True
    """Expired leases are charged exactly once, and `stats` tells what other clients have leased. Else only what is
    leased by this client is told from what waits.
    """
    priorities: bool = True
    """A smaller priority number is fetched sooner."""
    makes_queues: bool = True
    """A queue is there as soon as it is named. `queues` finds each one that holds a message. Else it must have been
    made, one that is missing is an error, and `queues` knows only those that this client was told of.
    """
    lists_live: bool = True
    """Messages that are not dead are listed, inspected and found by filters. Else only dead letters are, and other
    messages only counted in `stats`.
    """
    delay_resolution: float = 1e-6
    """Seconds to which delays are rounded up."""

    @property
    def finds_all(self) -> bool:
        """Return whether a message that is not found is gone; else it may be where this client cannot look."""
        return self.lists_live and self.makes_queues


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of one queue, O(1) however long it is. A count at `cap` means "at least"."""

    waiting: int = 0  # jobs ready to be fetched now; those that were delayed and have fallen due count here
    delayed: int = 0
    leased: int = 0  # jobs that are held, by a pool or a claim; expired leases that nobody has reaped yet included
    dead: int = 0  # dead letters, jobs and posted messages
    oldest: float | None = None  # seconds since the enqueue of the oldest waiting job; None when none waits
    cap: int | None = None
    posted: int = 0  # messages that no pool fetches (claim_store.py), dead ones left out: free, delayed or claimed

    @property
    def pending(self) -> int:
        """Every job that is not dead."""
        return self.waiting + self.delayed + self.leased

    @property
    def unattended(self) -> int:
        """Jobs that wait, or are delayed, while none is leased: a leased one shows that somebody serves the queue."""
        return 0 if self.leased else self.waiting + self.delayed


class ReapPolicy(Struct, frozen=True):
    """The reaper's treatment of a message whose lease has expired.

    After the first crash it is fetchable at once, then after a delay drawn uniformly from [0, min(back_off_cap,
    back_off * 2**(crashes - 2))] (full jitter, SEMANTICS "Leases").

    Raises `ConfigurationError`: a number is out of its bounds.
    """

    max_crashes: int = 5  # a crash beyond this many makes a dead letter, reason `crash-limit`; 0 = no limit
    window: float = 72 * 3600.0  # seconds; if the message's previous crash is longer ago, counting starts at 1 again
    back_off: float = 1.0  # seconds, >= 0: the upper edge of the delay after the second crash
    back_off_cap: float = 60.0  # seconds, >= 0: of any delay

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


class Reaped(Struct, frozen=True):
    """One message that a reap took back. `dead`: it went past `max_crashes`."""

    id: str
    queue: str
    crashes: int
    cause: str | None
    dead: bool


@hides("body")
class Message(Struct, frozen=True):
    """A message as an administrator sees it. Times are Unix seconds on the broker's clock."""

    id: str
    queue: str
    state: State
    handler: str  # "" for a posted message (claim_store.py)
    priority: int
    attempts: int
    crashes: int
    deliveries: int
    enqueued_at: float
    available_at: float
    body: bytes
    reason: str | None = None
    last_error: str | None = None
    cause: str | None = None
    died_at: float | None = None
    expires_at: float | None = None  # when the current lease or claim ends; None when not leased
    claim: str | None = None  # id of the claim that holds it; None when none does
    claims: int = 0  # how often it was claimed
    ends_at: float | None = None  # when the life of a posted message ends; None = never
    cursor: str = ""  # opaque; `list_messages(after=…)` continues after this message

    @property
    def death(self) -> Death | None:
        """`cause`, read: how the last attempt ended that was killed or crashed; None = none did."""
        return Death.from_text(self.cause) if self.cause else None


class MessageFilter(Struct, frozen=True):
    """A choice of messages. Every field that is set must match, those without a note exactly; empty means all.

    Raises `ValueError`: an age is not a number.
    """

    queue: str | None = None
    handler: str | None = None
    states: tuple[State, ...] = ()  # any of these
    reason: str | None = None
    older_than: float | None = None  # seconds since the enqueue, of a dead letter since its death: at least
    newer_than: float | None = None  # the same: at most
    text: str | None = None  # case-insensitive substring of the body, the last error or the cause
    ids: tuple[str, ...] = ()  # any of these

    def __post_init__(self) -> None:
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                age = check_number(getattr(self, name), name)
                force_setattr(self, name, max(-LONGEST_WAIT_S, min(age, LONGEST_WAIT_S)))
        for name in ("handler", "reason", "text"):
            if getattr(self, name) is not None:
                force_setattr(self, name, storable(getattr(self, name)))
        force_setattr(self, "ids", tuple(map(storable, self.ids)))

    @property
    def is_nowhere(self) -> bool:
        """Return whether it names what cannot be a queue, so that no broker is asked for it."""
        return self.queue is not None and not is_queue(self.queue)


class Verb(StrEnum):
    """A deed of `bulk` on what the filter finds. Leased messages are never touched."""  # cancels: control.py

    DELETE = "delete"
    RETRY = "retry"
    """Dead only: waiting again under its id; attempts, crashes, last error, reason and cause cleared, expiry lifted."""
    RESUME = "resume"
    """Dead only: waiting again under its id, expiry lifted; attempts, crashes, last error and cause as they were."""
    CANCEL = "cancel"
    """Jobs that wait or are delayed: a dead letter, reason `cancelled`. Only where `Capabilities.keeps_records`."""

    @property
    def meets(self) -> tuple[State, ...]:
        """The states in which it may meet a message."""
        return {"delete": (*UNHELD, State.DEAD), "cancel": UNHELD}.get(self, (State.DEAD,))


class Edited(StrEnum):
    """The answer to the edit of a job."""

    EDITED = "edited"
    UNCHANGED = "unchanged"
    """It is so already."""
    UNKNOWN = "unknown"
    """It is done and gone, or never was."""
    ENDED = "ended"
    """It is done, and its result is kept."""
    RUNNING = "running"
    DEAD = "dead"
    """It is a dead letter, which can only be retried or purged."""
    CLAIMED = "claimed"
    """A claim holds it, or it was posted: it is not a job that a pool could run."""
    DUPLICATE = "duplicate"
    """It is unique, and the queue that it was to move to knows a job with its key."""
    NOT_SIGNED = "not signed"
    """Its body cannot be signed anew: it is malformed, of a newer version, or not signed by a key of this program."""
    CHANGED = "changed meanwhile"
    """It is no longer as it was seen."""


class Edit(Struct, frozen=True):
    """A change of one job that waits or is delayed, made only while its queue and priority are those that were seen.

    Its id, place in the order, counters and last error stay, and so does its expiry.
    """

    seen: Message
    queue: str
    priority: int
    due: float | None = None  # Unix time; None = as it is
    body: bytes | None = None  # signed for this queue and priority; None = as it is


class NewMessage(Struct, frozen=True):
    """One message on its way in."""

    id: str
    given: bool  # the producer chose the id
    queue: str
    handler: str
    priority: int
    due: float | None  # Unix time; None = now
    body: bytes
    unique_key: str | None = None  # not added when a message with this key is known in its queue: `enqueue_many`
    attempts: int = 0  # this and the next ones: set for a message that comes from another queue
    crashes: int = 0  # the last of them counts as one of now
    deliveries: int = 0
    last_error: str | None = None  # of a `Move`, and `cause`: None leaves those that the message had
    cause: str | None = None
    batch: str | None = None  # of which it is a member; of one that is closed or has ended it is refused

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "body": self.body.decode()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> NewMessage:
        return cls(**{**fields, "body": fields["body"].encode()})


class NewBatch(Struct, frozen=True):
    """A batch on its way in, open. Its callbacks are added in the step in which it ends."""

    id: str
    parent: str | None = None  # a batch of which it is a member
    on_success: NewMessage | None = None  # added if all members succeeded
    on_done: NewMessage | None = None  # added in any case

    def callbacks(self, failed: bool) -> list[NewMessage]:
        """Return the messages that its end adds; `failed`: some of its members have not succeeded."""
        return [new for new in (None if failed else self.on_success, self.on_done) if new is not None]


Existing = Mapping[str, str]  # id that was asked for → id of the message that has its unique key already


def once_id(key: str) -> str:
    """Return the id that `enqueue_once` gives the message of this key, in the form of a minted one."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def check_ttl(ttl: float) -> float:
    """Return `ttl`, or raise `ValueError`: a lease lasts longer than 0 seconds and less than a year."""
    if not 0 < check_number(ttl, "ttl") < YEAR_S:
        raise ValueError(f"ttl must be more than 0 seconds and less than a year, not {ttl!r}")
    return float(ttl)


def check_wait(seconds: float, name: str) -> float:
    """Return how long to wait, a year at most; `ValueError`: it is not a number."""
    return min(YEAR_S, check_number(seconds, name))


def settle_delay(delay: float | None) -> float:
    """Return seconds of 0 or more for what a caller gave: None, NaN and below 0 act as 0."""
    return 0.0 if delay is None else max(0.0, check_number(delay, "delay", nan=True))


def read_cursor(after: str | None) -> int:
    """Return the number in a cursor, 0 for None; `ValueError` for a foreign cursor."""
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 20 and int(after) < 2**63):
        raise ValueError(f"cursor {after!r} is none: pass the `cursor` of the last message of the page before")
    return int(after or 0)
