"""What goes wrong with operations, as a test has asked for it.

Operations: "attach" (the name is the address), "send" and "settle" (the queue), "management" (the operation, such as
com.microsoft:renew-lock).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from servicebus_peer.errors import AmqpError

Operation = Literal["attach", "send", "settle", "management"]

MAX_UNSETTLED = 5000
"""Deliveries that a session may have unsettled before it is sent no more. Source: what users of the service report
(azure-amqp issue 152); the SDK leaves expired deliveries unsettled, and so comes to it."""


@dataclass
class Failure:
    """`times` operations fail whose name contains `match`."""

    operation: Operation
    error: AmqpError
    match: str
    times: int


@dataclass
class Faults:
    """All that is wrong now.

    Attributes:
        stalled: What clients send is not looked at, nothing is answered, no connection is closed.
        management_replies: How many a link that takes replies of $management gets in all; None = as its credit says.
    """

    failures: list[Failure] = field(default_factory=list)
    losses: dict[Operation, int] = field(default_factory=dict)
    stalled: bool = False
    management_replies: int | None = None
    max_unsettled: int = MAX_UNSETTLED

    def fail(self, operation: Operation, error: AmqpError, match: str, times: int) -> None:
        self.failures.append(Failure(operation, error, match.lower(), times))

    def check(self, operation: Operation, name: str) -> None:
        """Raises the error that was asked for this operation."""
        if not self.failures:
            return
        for failure in self.failures:
            if failure.operation == operation and failure.match in name.lower():
                failure.times -= 1
                if failure.times <= 0:
                    self.failures.remove(failure)
                raise failure.error

    def reply(self, operation: Operation, send: Callable[[], None]) -> None:
        """Send the reply to an operation, or lose it."""
        if self.losses and self.losses.get(operation, 0) > 0:
            self.losses[operation] -= 1
        else:
            send()
