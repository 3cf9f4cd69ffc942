"""Actions that the plan can ask for: the input of the loop's `perform`. One class a kind of action.

Those that come once a job are not frozen: freezing would cost half a microsecond each, and nobody changes one.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobpool.ipc.frames import Ask, Reply
from jobpool.master.slots import Delivery, Slot
from jobpool.message.settlement import Settlement


class Action:
    """Something to be done."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StartForkServer(Action):
    generation: int


@dataclass(frozen=True, slots=True)
class EndForkServer(Action):
    """Close its control channel: it ends its children and itself."""

    generation: int


@dataclass(frozen=True, slots=True)
class KillForkServer(Action):
    """It does not answer: kill it and its children."""

    generation: int


@dataclass(frozen=True, slots=True)
class SpawnChild(Action):
    slot: Slot


@dataclass(slots=True)
class Hand(Action):
    """Write the attempt to the child."""

    slot: Slot
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class TakeBack(Action):
    """Take unread frames off the child's socket."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class RetireChild(Action):
    """Let the child exit after what it runs; unread frames are taken back first. No other action can undo it."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class DumpStack(Action):
    slot: Slot


@dataclass(frozen=True, slots=True)
class LookForStack(Action):
    """See whether the stack that was asked for is written."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class KillChild(Action):
    slot: Slot


@dataclass(frozen=True, slots=True)
class ForgetChild(Action):
    """A killed child was not collected in time: close what we hold of it."""

    slot: Slot
    child: int


@dataclass(slots=True)
class Settle(Action):
    delivery: Delivery
    settlement: Settlement


@dataclass(frozen=True, slots=True)
class Produce(Action):
    """Enqueue for a child, or sign for it."""

    child: int
    ask: Ask


@dataclass(frozen=True, slots=True)
class Answer(Action):
    child: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class WriteStacks(Action):
    """Log the stack of every child (QUIT)."""
