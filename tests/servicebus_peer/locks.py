"""The peek-locks of one queue.

Source: "Message transfers, locks, and settlement", and the operations guide, "Message Renew Lock": a lock holds for the
queue's lock duration from the moment the message is taken, and as long again from each renewal.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from servicebus_peer.clock import Clock
from servicebus_peer.errors import lock_lost
from servicebus_peer.message import Lock, Message


class Locks:
    """By lock token, in the order in which they end: all last as long, and each is put last when it begins anew."""

    def __init__(self, duration: float, clock: Clock) -> None:
        self._duration = duration
        self._clock = clock
        self._held: dict[uuid.UUID, Message] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[uuid.UUID]:
        return iter(list(self._held))

    def take(self, message: Message) -> None:
        """Lock it, with a token that is new with every delivery."""
        token = uuid.uuid4()
        message.lock = Lock(token, *self._ends())
        self._held[token] = message

    def renew(self, token: uuid.UUID) -> int:
        """Begin anew; when it ends now, in ms of Unix time. Raises the error `lock_lost`."""
        message = self.find(token)
        assert message.lock is not None
        message.lock.until, message.lock.shown_until = self._ends()
        del self._held[token]
        self._held[token] = message
        return message.lock.shown_until

    def find(self, token: uuid.UUID) -> Message:
        """The message. Raises the error `lock_lost`."""
        message = self._held.get(token)
        if message is None:
            raise lock_lost(token)
        return message

    def end(self, token: uuid.UUID) -> Message:
        """Unlock the message. Raises the error `lock_lost`."""
        message = self.find(token)
        del self._held[token]
        message.lock = None
        return message

    def first_end(self) -> float | None:
        """When the next one ends, on the monotonic clock."""
        for message in self._held.values():
            return message.lock.until if message.lock else None
        return None

    def overdue(self) -> list[uuid.UUID]:
        """Those that have ended."""
        now = self._clock.monotonic()
        late: list[uuid.UUID] = []
        for token, message in self._held.items():
            if message.lock is None or message.lock.until > now:
                break
            late.append(token)
        return late

    def _ends(self) -> tuple[float, int]:
        return self._clock.monotonic() + self._duration, int((self._clock.wall() + self._duration) * 1000)
