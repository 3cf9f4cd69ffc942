"""Settling on the link that received, all at once: the dispositions of a batch are on their way together.

The SDK's `complete_message` waits for each answer before the next request. A message that another connection received
is settled through the management link, by the lock's token.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.outcomes import Accepted, Modified, Rejected, Released
from azure.servicebus.aio import ServiceBusReceiver

from jobpool_backends.servicebus.internals import client_of, listener_of, read_until, ready_client
from jobpool_backends.servicebus.verdicts import Disposition

Answer = BaseException | None
"""None: it is so. A `trouble.LOST`: the lock was gone. A TimeoutError: nobody knows."""

LOCK_LOST = "com.microsoft:message-lock-lost"

_DEAD_LETTER = b"com.microsoft:dead-letter"
_REASON = "DeadLetterReason"
_DESCRIPTION = "DeadLetterErrorDescription"


async def settle(
    receiver: ServiceBusReceiver,
    dispositions: Sequence[tuple[ServiceBusReceivedMessage, Disposition]],
    seconds: float | None = None,
) -> list[Answer]:
    """Settle messages that this receiver received; an answer each. One round trip, for which it waits so long.

    Raises what the SDK raises of broken links; nothing is known then.
    """
    client = await ready_client(receiver)
    listener = listener_of(receiver)
    listener.expect([message._delivery_id for message, _ in dispositions])
    for message, disposition in dispositions:
        await client._link.send_disposition(
            first_delivery_id=message._delivery_id,
            delivery_tag=message._delivery_tag,
            settled=False,
            delivery_state=_outcome(disposition),
        )
    with suppress(TimeoutError):  # told one by one
        await read_until(client, lambda: not listener.pending, seconds)
    listener.pending = 0
    return [_judge(listener.outcomes[message._delivery_id], disposition) for message, disposition in dispositions]


def settles_here(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> bool:
    """Return whether the receiver's link has this delivery as one to settle."""
    return message._delivery_tag in client_of(receiver)._link._received_delivery_tags


async def settle_by_token(
    receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, disposition: Disposition
) -> None:
    """Settle what another connection received, one round trip. Raises as the SDK does."""
    match disposition.kind:
        case "accepted":
            await receiver.complete_message(message)
        case "rejected":
            await receiver.dead_letter_message(message, disposition.reason, disposition.description)
        case _:
            await receiver.abandon_message(message)


async def is_there(receiver: ServiceBusReceiver, sequence: int) -> bool:
    """Return whether the queue still has the message with this number, locked or not. One round trip."""
    found = await receiver.peek_messages(max_message_count=1, sequence_number=sequence)
    return bool(found) and found[0].sequence_number == sequence


def _outcome(disposition: Disposition) -> Any:
    match disposition.kind:
        case "accepted":
            return Accepted()
        case "released":
            return Released()
        case "modified":
            return Modified(delivery_failed=True, undeliverable_here=False, message_annotations=None)
        case _:
            told = {_REASON: disposition.reason, _DESCRIPTION: disposition.description}
            return Rejected(AMQPError(condition=_DEAD_LETTER, description=disposition.description, info=told))


def _judge(outcome: dict[str, Any] | None, disposition: Disposition) -> Answer:
    if outcome is None:
        return TimeoutError("the broker did not say what became of the message")
    name = next(iter(outcome), "")
    refusal = _refusal(outcome) if name == "rejected" else None
    if refusal is not None or name == disposition.kind:
        return refusal
    return sdk.ServiceBusError(f"the broker answered {name or 'nothing'} to {disposition.kind}")


def _refusal(outcome: dict[str, Any]) -> Answer:
    """Return the error that a rejection carries; one without is only the echo of a dead letter."""
    fields = outcome["rejected"]
    error = fields[0] if fields else None
    if not error:
        return None
    condition = _text(error[0])
    description = _text(error[1]) if len(error) > 1 and error[1] else condition
    if condition == LOCK_LOST:
        return sdk.MessageLockLostError(message=description)
    return sdk.ServiceBusError(description, condition=condition)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
