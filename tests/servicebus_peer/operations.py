"""The operations of <queue>/$management, one by one: the operations guide, "Message operations".

Each takes the store and the arguments, and returns the body of the reply, or None for status 204.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from servicebus_peer import encoding as e
from servicebus_peer.store import Store

Arguments = dict[str, Any]
"""The map in the body of a request."""

Operation = Callable[[Store, Arguments], bytes | None]

MOST_PEEKED = 1000
"""Messages in one reply."""


def renew_lock(store: Store, arguments: Arguments) -> bytes:
    """All of them, or none when one is lost."""
    tokens = arguments["lock-tokens"]
    store.check_locks(tokens)
    ends = [store.renew(token) for token in tokens]
    return _map("expirations", e.array_of_timestamps(ends))


def peek_message(store: Store, arguments: Arguments) -> bytes | None:
    most = max(0, min(arguments["message-count"], MOST_PEEKED))
    found = store.peek(arguments["from-sequence-number"], most)
    return _messages([_entry(message.encoded(peeked=True)) for message in found]) if found else None


def cancel_scheduled_message(store: Store, arguments: Arguments) -> bytes:
    store.cancel(arguments["sequence-numbers"])
    return e.map_of([])


def update_disposition(store: Store, arguments: Arguments) -> bytes:
    """All of them, or none when one lock is lost."""
    settle, tokens = _DISPOSITIONS[arguments["disposition-status"]], arguments["lock-tokens"]
    store.check_locks(tokens)
    for token in tokens:
        settle(store, token, arguments)
    return e.map_of([])


def _suspend(store: Store, token: uuid.UUID, arguments: Arguments) -> None:
    store.dead_letter(token, arguments.get("deadletter-reason"), arguments.get("deadletter-description"))


_DISPOSITIONS: dict[str, Callable[[Store, uuid.UUID, Arguments], None]] = {
    "completed": lambda store, token, _: store.complete(token),
    "abandoned": lambda store, token, _: store.abandon(token),
    "suspended": _suspend,
}
"""The words are the service's; "suspended" is dead-lettered."""


def _map(key: str, value: bytes) -> bytes:
    return e.map_of([e.string(key) + value])


def _messages(entries: Sequence[bytes]) -> bytes:
    return _map("messages", e.list_(entries))


def _entry(encoded: bytes) -> bytes:
    return _map("message", e.binary(encoded))


OPERATIONS: dict[str, Operation] = {
    "com.microsoft:renew-lock": renew_lock,
    "com.microsoft:peek-message": peek_message,
    "com.microsoft:cancel-scheduled-message": cancel_scheduled_message,
    "com.microsoft:update-disposition": update_disposition,
}
