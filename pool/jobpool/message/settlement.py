"""Settlements of a leased message, and the backend's answers to them."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct
from msgspec.structs import force_setattr

from jobpool.message.definition import JobDefinition, SentJobs
from jobpool.message.names import storable
from jobpool.message.results import Kept
from jobpool.message.units import check_number

CANCELLED = "cancelled"  # the reason of an abandon that a person asked for
FAILED_REASONS = frozenset({"failed", "unrecoverable", "timeout", "memory-limit"})  # of an abandon that ends an attempt
OTHER_REASONS = frozenset(
    {"crash-limit", "claim-limit", "rejected", "handler-not-allowed", "unknown-handler", "expired", CANCELLED}
)
"""Of jobpool's dead letters. A broker, and a program of the user's own, may give others."""


class _Checked(Struct, frozen=True):
    """A settlement whose delay is a number, and whose texts a broker can keep: no handler's error may hold it up."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "delay":
                check_number(value, "delay", nan=True)
            elif name in ("reason", "error", "cause") and value is not None:
                if not isinstance(value, str):
                    raise ValueError(f"{name} is text, not {value!r}")
                force_setattr(self, name, storable(value))


class Ack(Struct, frozen=True):
    """Done: remove the message, and mark the idempotency key of a guarded lease done.

    `follow_ups` are enqueued in the same step where `Capabilities.atomic_across_queues` says so. `result` is kept in
    the same step, by a broker with a key store.
    """

    follow_ups: tuple[JobDefinition, ...] | SentJobs = ()
    result: Kept | None = None


class Nack(_Checked, frozen=True):
    """Failed: back to the queue after `delay` seconds (below 0, and NaN, act as 0), attempts + 1."""

    delay: float = 0.0
    error: str | None = None
    cause: str | None = None  # the end of an attempt, or what it printed (death.py); None leaves that of an earlier one


class Abandon(_Checked, frozen=True):
    """Give up: to the dead letters; attempts + 1 if it ends a failed attempt (`FAILED_REASONS`)."""

    reason: str = ""  # a short word to filter by (`timeout`, `rejected`, …)
    error: str | None = None  # for people
    cause: str | None = None  # as in `Nack`
    follow_ups: tuple[JobDefinition, ...] = ()  # as in `Ack`: copies for a queue of failed payloads

    @property
    def attempts(self) -> int:
        """Failed attempts that it adds to those of the message, 0 or 1."""
        return int(self.reason in FAILED_REASONS)


class Release(_Checked, frozen=True):
    """A message given back unharmed after `delay` seconds: no counter that leads to a dead letter moves."""

    delay: float = 0.0
    begun: bool = True  # by its handler: it expires no more. False: the rates of a guarded lease are given back too


class Forfeit(_Checked, frozen=True):
    """No verdict: the lease ends now, `cause` is kept beside it, and the reaper recovers the message."""

    cause: str = ""


class Move(_Checked, frozen=True):
    """A move to another queue, signed for it anew, under its id: removed here and added there as `Ack.follow_ups` are.

    It goes on there with its counters, `attempts` and `crashes` (0 or 1) added, and waits at the end of that queue. Its
    idempotency key is not done, and its claim to be unique ends. `error` and `cause` as in `Nack`.
    """

    queue: str
    attempts: int = 0
    crashes: int = 0
    error: str | None = None
    cause: str | None = None


Settlement = Ack | Nack | Abandon | Release | Forfeit | Move


class Leave(Struct, frozen=True):
    """The lack of a settlement: leave the message alone, because the lease is no longer ours."""

    why: str


def brings(settlement: Settlement) -> bool:
    """Return whether a settlement adds messages to queues: follow-ups, or the message that moves."""
    kind = type(settlement)
    if kind is Ack or kind is Abandon:
        return bool(settlement.follow_ups)  # type: ignore[union-attr]
    return kind is Move


class Settled(Enum):
    """A backend's answer to a settlement. Truthy when the message is where the caller wanted it.

    The refusals are tried in this order, and a refusal changes nothing: `NOT_IN_FLIGHT`, `EXPIRED`, `NOT_OWNER`. A
    message whose queue or priority was edited since may not be found any more: then a former lease is `NOT_IN_FLIGHT`.
    """

    OK = "ok"
    ALREADY = "already"  # a repeat, within 60 s, of a call that was answered `OK`; nothing was changed
    NOT_IN_FLIGHT = "not-in-flight"  # the message is waiting, delayed, dead or gone: no lease holds it
    EXPIRED = "expired"  # the message is still leased, and that lease's deadline has been reached
    NOT_OWNER = "not-owner"  # the message is leased to somebody else now

    def __bool__(self) -> bool:
        return self is Settled.OK or self is Settled.ALREADY
