"""Orders to the broker about a message that we hold: AMQP's four outcomes, as Service Bus reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of them.

    Attributes:
        kind: AMQP's word for the outcome.
        reason, description: Of a dead letter.
    """

    kind: str
    reason: str = ""
    description: str = ""


COMPLETE = Verdict("accepted")
"""Done with: it goes."""

ABANDON = Verdict("modified")
"""Back to the queue at once; counted as a delivery."""

RELEASE = Verdict("released")
"""Back to the queue at once, as if it had not been looked at."""


def bury(reason: str, description: str) -> Verdict:
    """Move it to the dead letters."""
    return Verdict("rejected", reason, description)
