"""The table of children: a slot is a place in the pool, a child fills it and may be replaced.

    EMPTY ──spawn──► STARTING ──ready──► IDLE ◄──last result── BUSY
      ▲                 │                 │ └──first frame────► │
      │                 └───────┬─────────┴──────────┬──────────┘
      │                         ▼ kill, retire       │ died by itself
      └──────collected────── DYING                   │
      ▲──────────────────────────────────────────────┘

Every legal move stands in `MOVES`; another raises `IllegalMoveError` and changes nothing. A slot is found by its index,
which is stable, and by the serial number of its child, which changes. A child that is not in this table belongs to
another program.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, repeat

from msgspec import Struct

from jobpool.message.lease import JobLease
from jobpool.message.outcome import EndReason, Outcome

_NONCES_AT_ONCE = 512


class SlotState(Enum):
    EMPTY = "empty"
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    DYING = "dying"


MOVES: dict[SlotState, frozenset[SlotState]] = {
    SlotState.EMPTY: frozenset({SlotState.STARTING}),
    SlotState.STARTING: frozenset({SlotState.IDLE, SlotState.DYING, SlotState.EMPTY}),
    SlotState.IDLE: frozenset({SlotState.BUSY, SlotState.DYING, SlotState.EMPTY}),
    SlotState.BUSY: frozenset({SlotState.IDLE, SlotState.DYING, SlotState.EMPTY}),
    SlotState.DYING: frozenset({SlotState.EMPTY}),
}


class IllegalMoveError(RuntimeError):
    """A slot was told to go where it cannot go from where it is: a fault in the pool, never in a job."""


@dataclass(slots=True, eq=False)
class Slot:
    """One place. `deliveries` were handed over and not answered; the head runs. Times are CLOCK_MONOTONIC seconds."""

    index: int
    state: SlotState = SlotState.EMPTY
    child: int = 0
    pid: int = 0
    generation: int = 0
    since: float = 0.0
    restarts: int = -1
    rss: int = 0
    peak_rss: int = 0
    cpu: float = 0.0
    is_stopped: bool = False
    sampled_at: float = 0.0
    last_death: str = ""
    full: bool = False
    emptied: bool = False
    """Its socket was seen empty, and nothing was handed to it since: all its deliveries have begun, or will."""
    broken_at: float = 0.0
    dead_at: float = 0.0
    """Its process has ended and was not collected yet."""
    suspicion: float = 0.0
    """When its fork server died: 0 for whose attempt had run the longest, 1 for the youngest of several."""
    ending: EndReason = EndReason.NONE
    ending_text: str = ""
    ending_of: int = 0
    """Nonce of the head at that time."""
    killed_at: float = 0.0
    dumped_at: float = 0.0
    awaits_stack: bool = False
    """The stack that was asked for at `dumped_at` was not seen yet."""
    head_since: float = 0.0
    cancelled_at: float = 0.0
    """When the head was first found to be cancelled; `alarmed_at`: when its child was last told."""
    alarmed_at: float = 0.0
    looked_at: float = 0.0
    """When its child was last seen not to have begun the head."""
    retiring: bool = False
    deliveries: deque[Delivery] = field(default_factory=deque)
    idle: dict[int, Slot] = field(default_factory=dict, repr=False)
    engaged: dict[int, Slot] = field(default_factory=dict, repr=False)
    """Its table's slots whose children may be given something, the last one to become so last; and other live ones."""

    def move(self, to: SlotState, now: float) -> None:
        """Go to `to`, or raise `IllegalMoveError`."""
        if to not in MOVES[self.state]:
            raise IllegalMoveError(f"slot {self.index} cannot go from {self.state.value} to {to.value}")
        self.state, self.since = to, now
        self._sort_in()

    def leave(self) -> None:
        """Note that nothing more is to be handed to its child."""
        self.retiring = True
        if self.index in self.idle:
            self._sort_in()

    def _sort_in(self) -> None:
        self.idle.pop(self.index, None)
        self.engaged.pop(self.index, None)
        if self.state is SlotState.IDLE and not self.retiring:
            self.idle[self.index] = self
        elif self.state is not SlotState.EMPTY:
            self.engaged[self.index] = self

    def add_deliveries(self, deliveries: list[Delivery], now: float) -> None:
        """Note that these, one at least, were written to the child; the clock of the head starts here."""
        if not self.deliveries:
            self.move(SlotState.BUSY, now)
            self.head_since, self.dumped_at, self.cancelled_at = now, 0.0, 0.0
        for delivery in deliveries:
            delivery.slot = self.index
        self.deliveries += deliveries
        self.emptied = False

    def finished(self, nonce: int, now: float) -> Delivery | None:
        """Take the head off if it is attempt `nonce`; the next one starts now. None: not what runs here."""
        if not self.deliveries or self.deliveries[0].nonce != nonce:
            return None
        head = self.deliveries.popleft()
        self.head_since, self.dumped_at, self.cancelled_at, self.full = now, 0.0, 0.0, False
        if not self.deliveries:
            self._shortened(now)
        return head

    def take_back(self, nonces: set[int], now: float) -> list[Delivery]:
        """Remove the deliveries that the child will never read, in their order."""
        taken = [delivery for delivery in self.deliveries if delivery.nonce in nonces]
        if taken:
            self.deliveries = deque(d for d in self.deliveries if d.nonce not in nonces)
            self._shortened(now)
        return taken

    def _shortened(self, now: float) -> None:
        self.full = False
        if not self.deliveries and self.state is SlotState.BUSY:
            self.move(SlotState.IDLE, now)

    @property
    def waiting(self) -> int:
        """The number of deliveries behind the head that may be taken back."""
        return 0 if self.emptied or not self.deliveries else len(self.deliveries) - 1

    @property
    def is_ready(self) -> bool:
        """Return whether its child runs an attempt, or could; one that has died cannot, collected or not."""
        return self.state in (SlotState.IDLE, SlotState.BUSY) and not self.dead_at

    def deadline(self) -> float | None:
        """Return when the running attempt's time is up; None: nothing runs, or it is unlimited."""
        if not self.deliveries or self.deliveries[0].timeout <= 0:
            return None
        return self.head_since + self.deliveries[0].timeout

    def end(self, why: EndReason, now: float, text: str = "", killed: bool = True) -> None:
        """Note that the child is being ended; its first reason stands."""
        if self.state is not SlotState.DYING:
            self.move(SlotState.DYING, now)
            self.ending, self.ending_text = why, text
            self.ending_of = self.deliveries[0].nonce if self.deliveries else 0
        if killed and not self.killed_at:
            self.killed_at = now


class Slots:
    def __init__(self, count: int) -> None:
        self.idle: dict[int, Slot] = {}
        self.engaged: dict[int, Slot] = {}
        self.all = [Slot(index, idle=self.idle, engaged=self.engaged) for index in range(count)]
        self.by_child: dict[int, Slot] = {}

    def empty(self) -> Slot | None:
        return next((slot for slot in self.all if slot.state is SlotState.EMPTY), None)

    def start(self, slot: Slot, child: int, generation: int, now: float) -> None:
        slot.move(SlotState.STARTING, now)
        slot.child, slot.generation, slot.pid = child, generation, 0
        slot.restarts += 1
        slot.ending, slot.ending_text = EndReason.NONE, ""
        slot.retiring = slot.full = False
        slot.killed_at = slot.dumped_at = slot.broken_at = slot.dead_at = 0.0
        slot.rss = slot.peak_rss = 0
        self.by_child[child] = slot

    def collect(self, child: int, now: float) -> Slot | None:
        """Note a collected death. Return its slot, now EMPTY, with its deliveries still on it; None: not ours."""
        slot = self.by_child.pop(child, None)
        if slot is not None:
            slot.move(SlotState.EMPTY, now)
            slot.child, slot.pid, slot.cpu = 0, 0, 0.0
        return slot

    def count(self, *states: SlotState) -> int:
        return sum(slot.state in states for slot in self.all)

    @property
    def live(self) -> list[Slot]:
        """Slots that have a child."""
        return list(self.by_child.values())

    def of(self, generation: int) -> list[Slot]:
        return [slot for slot in self.by_child.values() if slot.generation == generation]


def nonces() -> Iterator[int]:
    """Return numbers for attempts: 64 bits, random, never 0.

    A child learns the number of an attempt from the attempt's frame. So a handler cannot answer for the jobs that wait
    in its child's socket. Drawn by the hundred, because each draw costs a system call.
    """
    draws = (struct.unpack(f"={_NONCES_AT_ONCE}Q", os.urandom(_NONCES_AT_ONCE * 8)) for _ in repeat(None))
    return filter(None, chain.from_iterable(draws))


class Delivery(Struct, eq=False):
    """One attempt at a message. Times are CLOCK_MONOTONIC seconds."""

    lease: JobLease  # the newest: it is replaced when it is renewed
    nonce: int  # names this attempt in every frame and kill; of `nonces`
    timeout: float  # seconds for the handler; 0 = unlimited
    handler: str
    leased_at: float
    lasts: float = 0.0  # seconds for which each renewal holds; 0 = not known yet. The renew thread's alone
    slot: int = -1  # index of the slot whose socket holds it, or -1
    priority: int = 0  # of its message; a smaller number runs sooner
    acks_itself: bool = False  # its handler may ack in a transaction of its own, and is given the ticket to do so
    settling: bool = False  # a settlement is under way: its verdict is fixed, "lost" is ignored
    refused_at: float = 0.0  # when the broker first refused its settlement; 0 = it has not
    cancelled: bool = False  # a person has asked for its end
    lost: bool = False  # its lease has ended: it is not settled any more
    outcome: Outcome | None = None
    began: float = 0.0  # when its handler began, once `ran` is known
    ran: float | None = None  # seconds; None = it has not ended, or never ran
    # As its child said at the end. Plain values, not a `Result`: many deliveries wait for their settlement at once, and
    # the garbage collector would look through all of their results.
    output: str = ""
    error: str = ""
