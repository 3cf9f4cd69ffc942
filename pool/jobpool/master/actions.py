"""Actions that the plan can ask for: the input of the loop's `perform`. One class a kind of action."""

from __future__ import annotations

import socket

from msgspec import Struct

from jobpool.ipc.child_channel import MAX_FRAMES_AHEAD
from jobpool.ipc.frames import Ask, Reply
from jobpool.master.slots import Delivery, Slot
from jobpool.message.definition import SentJobs
from jobpool.message.settlement import Settlement


class Action(Struct):
    """Something for the loop to do."""


class Settle(Action):
    work: list[tuple[Delivery, Settlement]]


class StartForkServer(Action):
    generation: int


class EndForkServer(Action):
    """Close its control channel, so that it ends its children and itself. `kill`: kill all, for it does not answer."""

    generation: int
    kill: bool = False


class SlotAction(Action):
    slot: Slot


class SpawnChild(SlotAction):
    pass


class Dispatch(SlotAction):
    """Write these to the child, in this order."""

    deliveries: list[Delivery]


class TakeBack(SlotAction):
    """Take unread frames off the child's socket, the next ones to be read; `most`: how many at most."""

    most: int = MAX_FRAMES_AHEAD


class Steal(TakeBack):
    """Take back for idle children, if this child has begun its head: else it waits for a core, and goes on soon."""


class RetireChild(SlotAction):
    """Let the child exit after what it runs; unread frames are taken back first. No other action can undo it."""


class DumpStack(SlotAction):
    pass


class LookForStack(SlotAction):
    """A check of whether the stack that was asked for is written."""


class KillChild(SlotAction):
    pass


class CancelAttempt(SlotAction):
    """Raise `Cancelled` in the handler of the head."""


class ForgetChild(Action):
    """A killed child was not collected in time: close what we hold of it."""

    child: int


class Produce(Action):
    """Enqueue for a child, or sign for it."""

    child: int
    ask: Ask
    jobs: SentJobs  # of the question


class Answer(Action):
    child: int
    reply: Reply


class AnswerStack(SlotAction):
    """Answer a person with the stack of a child; None: log it (QUIT)."""

    answer: socket.socket | None


class AnswerUser(Action):
    """Answer a person."""

    answer: socket.socket
    text: str
