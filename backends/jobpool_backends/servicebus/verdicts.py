"""Orders to the broker about a message that we hold: AMQP's four outcomes, as Service Bus reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Disposition:
    """One of them.

    Attributes:
        kind: AMQP's word for the outcome.
        reason, description: Of a dead letter.
    """

    kind: str
    reason: str = ""
    description: str = ""


COMPLETE = Disposition("accepted")
"""Done with: it goes."""

ABANDON = Disposition("modified")
"""Back to the queue at once; counted as a delivery."""

RELEASE = Disposition("released")
"""Back to the queue at once, as if it had not been looked at."""


def bury(reason: str, description: str) -> Disposition:
    """Move it to the dead letters."""
    return Disposition("rejected", reason, description)
