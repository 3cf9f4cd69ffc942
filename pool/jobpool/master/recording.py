"""From a settlement that was accepted to the attempt that history keeps. On the writer's thread, not the loop's."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from jobpool.errors import MalformedEnvelope
from jobpool.master.delivery import Delivery
from jobpool.message.outcome import Rejected, Snoozed
from jobpool.message.settlement import Abandon, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool.policy.decide import status_of
from jobpool.telemetry.history.row import UNNAMED, Attempt


@dataclass(slots=True)
class Recorded:
    """What the loop hands over. `at`: Unix time minus CLOCK_MONOTONIC, when the answer came."""

    delivery: Delivery
    settlement: Settlement
    answer: Settled
    offset: float


def is_history(delivery: Delivery, settlement: Settlement, answer: Settled) -> bool:
    """Whether this tells of an attempt, or of a message's end: what was only given back does not."""
    if not answer or delivery.outcome is None:
        return False
    return not isinstance(settlement, Release) or isinstance(delivery.outcome, Snoozed)


def name_of(delivery: Delivery) -> str:
    """Under which its attempts are kept: the job's name, else its handler's; none for what nobody vouches for."""
    if isinstance(delivery.outcome, Rejected):
        return UNNAMED
    envelope = delivery.lease.envelope
    return envelope.name or envelope.job


def size_of(delivery: Delivery) -> int:
    """About how many bytes are held for it."""
    return len(delivery.lease.body) + len(delivery.output) + len(delivery.error)


def attempt_of(recorded: Recorded) -> Attempt:
    """What history keeps of it."""
    delivery, settlement = recorded.delivery, recorded.settlement
    lease, outcome = delivery.lease, delivery.outcome
    assert outcome is not None
    job, payload = "", None
    with contextlib.suppress(MalformedEnvelope):  # rejected for just that
        job, payload = lease.envelope.job, lease.envelope.payload
    return Attempt(
        name=name_of(delivery),
        job=job,
        id=lease.id,
        attempt=lease.attempts + 1,
        queue=lease.queue,
        payload=payload,
        status=status_of(settlement, outcome, recorded.answer).value,
        output=delivery.output,
        error=_error(settlement, delivery.error),
        start=None if delivery.ran is None else delivery.began + recorded.offset,
        duration=delivery.ran,
        cause=settlement.cause if isinstance(settlement, Nack | Abandon | Move | Forfeit) else None,
    )


def _error(settlement: Settlement, said: str) -> str | None:
    """What the settlement says of it, else what the child said."""
    told = settlement.error if isinstance(settlement, Nack | Abandon | Move) else None
    return told or said or None
