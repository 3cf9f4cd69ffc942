"""Events in the life of a pool: the input of `apply`. One class a kind of event; nobody changes one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from jobpool.broker import control
from jobpool.broker.values import QueueStats, Reaped
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.ipc.frames import Exited, Frame, Reply, Result
from jobpool.ipc.requests import Request
from jobpool.master.slots import Delivery
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from jobpool.policy.inspection import Inspected


class Event(Struct):
    """Something that has happened."""


class Leased(Event):
    """A fetch brought messages; it took so long, in seconds, and `late` leases had ended before they came.

    `lasts`: seconds of the shortest lease, counted from the request; 0 = as long as was asked for.
    """

    leases: list[Inspected]
    took: float = 0.0
    late: int = 0
    lasts: float = 0.0

    @property
    def brought(self) -> int:
        """Return how many messages there were, the late ones too."""
        return len(self.leases) + self.late


class BrokerSilent(Event):
    """A call to the broker failed, for want of an answer or by a refusal; said once an outage, thread and kind."""

    error: str
    thread: str = ""
    kind: type[JobpoolError] = BackendUnavailable


class BrokerAnswered(Event):
    """A good answer to what had failed in this thread: its outage is over."""

    thread: str = ""


class BreakerTurned(Event):
    """A queue's circuit breaker has opened, so that nothing is fetched from the queue, or has closed."""

    queue: str
    is_open: bool


class Answered(Event):
    """The backend's answers to settlements. The call took so long, in seconds; 0 = it was not measured."""

    answers: list[tuple[Delivery, Settlement, Settled]]
    took: float = 0.0


class GivenUp(Event):
    """Settlements whose leases ended before the broker answered: nothing more is done about them."""

    deliveries: list[Delivery]


class Renewed(Event):
    """(delivery, its renewed lease); None: lost."""

    renewals: list[tuple[Delivery, JobLease | None]]


class LeasesBroke(Event):
    """These leases ended before their time: the connection that owned them broke."""

    leases: list[JobLease]


class ReapDone(Event):
    reaped: list[Reaped]


class ControlRead(Event):
    """A change in the requests of people to queues and pools, or the first look at them."""

    asked: control.PoolRequests


class Counted(Event):
    stats: dict[str, QueueStats]


class FrameCame(Event):
    """A frame of a fork server or a child has come, other than a `Result` or an `Exited`."""

    sender: int  # the generation of the fork server, or the child's number
    frame: Frame


class ForkServerGone(Event):
    """Its control channel has closed; its process is dead or dying."""

    generation: int


class ChildEvent(Event):
    child: int


class ChildResults(ChildEvent):
    """All answers that one look at a child has brought, in their order."""

    results: list[Result]


class AppSaid(Event):
    """A line that a fork server or scheduler printed, mostly the app while it was imported."""

    line: str
    app: str = "import"  # or "scheduler"


class Produced(ChildEvent):
    """A child's `Ask` was carried out, or refused."""

    reply: Reply


class FollowUpsRefused(Event):  # by the backend, and so their ack was not settled
    delivery: Delivery
    error: str


class ChildBroken(ChildEvent):
    """The channel has closed, or carried what is not a frame. Not a proof of death, but the child is useless now."""

    why: str
    closed: bool


class ChildEnded(ChildEvent):
    """Its process has ended; the fork server has yet to collect it, and to say how."""


class ChildDied(Event):
    """The death was collected and the channel drained.

    `started`: nonce of the last attempt that the child began. `stack`, `output`: as it left them, capped. `unread`:
    nonces of the frames that it had not read. `killer`: who else than the master sent SIGKILL; "" = unknown, or none.
    `deadline`: of that attempt, as the child itself counted it; 0 = none.
    """

    exited: Exited
    started: int
    unread: frozenset[int]
    stack: str
    output: str
    killer: str = ""
    deadline: float = 0.0


class TookBack(ChildEvent):
    """Frames that the child had not read are the master's again; `emptied`: they were the last."""

    nonces: frozenset[int]
    emptied: bool = True


class NotBegun(ChildEvent):
    """The child has not begun its head yet, so nothing was taken from its socket for idle children."""


class Sampled(Event):
    """(child, resident bytes, share of one core, whether it is stopped) of each child looked at, not before `at`."""

    samples: list[tuple[int, int, float, bool]]
    at: float


class LoopCall(Event):
    """Another thread wants something made of the pool's state, on the loop's thread. Quick, and changes nothing."""

    make: Callable[[Any], object]


class Requested(Event):
    """A person on this machine asks something about a child; `answer` is where the loop replies."""

    request: Request
    answer: socket.socket


class SignalCame(Event):
    number: int
    terminal_closed: bool = False  # a SIGHUP's reason


class ThreadDied(Event):
    """A thread of the master ended by an error: one that nobody foresaw, or the broker's, whose sentence is `error`."""

    name: str
    trace: str
    error: str = ""
    package: str = "jobpool"  # whose fault it is, as far as can be told
