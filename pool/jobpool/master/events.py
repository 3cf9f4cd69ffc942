"""Events in the life of a pool: the input of `apply`. One class a kind of event.

Those that come once a job are not frozen: freezing would cost half a microsecond each, and nobody changes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobpool.broker.values import QueueStats, Reaped
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.ipc.frames import Ask, Exited, HandlerInfo, Result
from jobpool.master.slots import Delivery
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from jobpool.policy.inspection import Inspected

if TYPE_CHECKING:
    from jobpool.master.state import Pool


class Event:
    """Something that has happened."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Leased(Event):
    """A fetch brought messages; it took so many seconds, and `late` leases had ended before they came.

    `lasts`: seconds of the shortest lease, counted from the request; 0 = as long as was asked for.
    """

    leases: list[Inspected]
    took: float = 0.0
    late: int = 0
    lasts: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerSilent(Event):
    """A call to the broker failed, for want of an answer or by a refusal; said once an outage, thread and kind."""

    error: str
    thread: str = ""
    kind: type[JobpoolError] = BackendUnavailable


@dataclass(frozen=True, slots=True)
class BrokerAnswered(Event):
    """A good answer to what had failed in this thread: its outage is over."""

    thread: str = ""


@dataclass(frozen=True, slots=True)
class BreakerOpened(Event):
    """Fetches from a queue failed so often that none is made for `cooldown` seconds."""

    queue: str
    cooldown: float
    error: str


@dataclass(frozen=True, slots=True)
class BreakerClosed(Event):
    """A fetch from the queue was answered again."""

    queue: str


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """The backend's answers to settlements. The call took so many seconds; 0 = it was not measured."""

    answers: list[tuple[Delivery, Settlement, Settled]]
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class GivenUp(Event):
    """Settlements whose leases ended before the broker answered: nothing more is done about them."""

    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """(delivery, its renewed lease); None: lost."""

    renewals: list[tuple[Delivery, JobLease | None]]


@dataclass(frozen=True, slots=True)
class LeasesBroke(Event):
    """These leases ended before their time: the connection that owned them broke."""

    leases: list[JobLease]


@dataclass(frozen=True, slots=True)
class ReapDone(Event):
    reaped: list[Reaped]


@dataclass(frozen=True, slots=True)
class Counted(Event):
    """Fresh counts of every queue."""

    stats: dict[str, QueueStats]


@dataclass(frozen=True, slots=True)
class Produced(Event):
    """A child's `Ask` was carried out: ids (and messages, if it asked for them), or an error and its class's name."""

    child: int
    ids: list[str]
    kind: str = ""
    error: str = ""
    packed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AppLoaded(Event):
    generation: int
    handlers: list[HandlerInfo]
    preloaded: bool
    threads: list[str]
    seconds: float


@dataclass(frozen=True, slots=True)
class AppFailed(Event):
    generation: int
    error: str
    trace: str


@dataclass(frozen=True, slots=True)
class ForkServerGone(Event):
    """Its control channel has closed; its process is dead or dying."""

    generation: int


@dataclass(frozen=True, slots=True)
class ChildSpawned(Event):
    child: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnRefused(Event):
    child: int
    error: str


@dataclass(frozen=True, slots=True)
class ChildReady(Event):
    child: int


@dataclass(frozen=True, slots=True)
class ChildBootFailed(Event):
    child: int
    error: str


@dataclass(slots=True)
class ChildResult(Event):
    child: int
    result: Result


@dataclass(frozen=True, slots=True)
class ChildAsked(Event):
    child: int
    ask: Ask


@dataclass(frozen=True, slots=True)
class ChildBroken(Event):
    """The channel has closed, or carried what is not a frame. Not a proof of death, but the child is useless now."""

    child: int
    why: str
    closed: bool


@dataclass(frozen=True, slots=True)
class ChildEnded(Event):
    """Its process has ended; the fork server has yet to collect it, and to say how."""

    child: int


@dataclass(frozen=True, slots=True)
class ChildDied(Event):
    """The death was collected and the channel drained.

    `started`: nonce of the last attempt that the child began. `stack`, `output`: what it left behind, capped.
    `unread`: nonces of the frames that it had not read. `killer`: who sent SIGKILL, if the master did not; "" = nobody,
    or not known.
    """

    child: int
    exited: Exited
    started: int
    unread: frozenset[int]
    stack: str
    output: str
    killer: str = ""


@dataclass(frozen=True, slots=True)
class TookBack(Event):
    """Frames that the child had not read are the master's again."""

    child: int
    nonces: frozenset[int]


@dataclass(frozen=True, slots=True)
class Sampled(Event):
    """(child, resident bytes, share of one core) of each child that was looked at, not before `at`."""

    samples: list[tuple[int, int, float]]
    at: float


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """Another thread wants something made of the pool's state, on the loop's thread. Quick, and changes nothing."""

    make: Callable[[Pool], object]


@dataclass(frozen=True, slots=True)
class SignalCame(Event):
    number: int


@dataclass(frozen=True, slots=True)
class ThreadDied(Event):
    """A thread of the master ended by an error: one that nobody foresaw, or the broker's, whose sentence is `error`."""

    name: str
    trace: str
    error: str = ""
