"""What a client's disposition does to a message: AMQP 3.4, and the SDK's settlement of received messages.

The outcomes: accepted = complete; released = release; modified, with delivery-failed = abandon; rejected =
dead-letter, with reason and description in the error's info. Nothing is deferred (modified with undeliverable-here).
"""

from __future__ import annotations

import uuid

from servicebus_peer import codes, replies
from servicebus_peer.decoding import Described
from servicebus_peer.errors import AmqpError
from servicebus_peer.fields import Fields, composite
from servicebus_peer.store import Store

REASON = "DeadLetterReason"
DESCRIPTION = "DeadLetterErrorDescription"


def settle(store: Store, token: uuid.UUID, state: Described) -> bytes:
    """Do it; the outcome to tell the client: the same, or "rejected" with an error."""
    try:
        return _settled(store, token, state)
    except AmqpError as error:
        return replies.rejected(error.condition, error.description)


def _settled(store: Store, token: uuid.UUID, state: Described) -> bytes:
    match state.descriptor:
        case codes.ACCEPTED:
            store.complete(token)
            return replies.ACCEPTED
        case codes.RELEASED:
            store.release(token)
            return replies.RELEASED
        case codes.MODIFIED:
            store.abandon(token)
            return replies.MODIFIED
        case _:
            store.dead_letter(token, *_reason(Fields(state.value)))
            return replies.REJECTED


def _reason(rejected: Fields) -> tuple[str | None, str | None]:
    fields = composite(rejected.need(0, Described), codes.ERROR)
    info = fields.find(2, dict) or {}
    return _text(info.get(REASON)), _text(info.get(DESCRIPTION)) or fields.find(1, str)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
