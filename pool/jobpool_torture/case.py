"""All that is known of one message, as the oracle's rules are given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobpool.broker.values import Capabilities, Message
from jobpool_torture.message_history import History


@dataclass(frozen=True, slots=True)
class Case:
    """The knowledge about one message.

    Attributes:
        kept: Messages that the broker still has under its id; mostly one or none.
        promised: An enqueue was answered.
        tried: An enqueue was tried, at least.
        witnessed: All pools ran under a witness.
    """

    history: History
    kept: tuple[Message, ...]
    promised: bool
    tried: bool
    can: Capabilities
    witnessed: bool

    @property
    def copies(self) -> int:
        """How many more of it there may be than were enqueued."""
        return 0 if self.can.atomic_nack else self.history.copies()


Rule = Callable[[Case], str]
"""The sentence that says what is wrong; "" = nothing."""
