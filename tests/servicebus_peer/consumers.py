"""Who waits for the messages of one store.

Source: the protocol guide, "Flow control": the credit of any link remains recorded in order of arrival, and messages
are locked and transferred as they become available.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from servicebus_peer.clock import Clock
from servicebus_peer.store import Store


class Waiting(Protocol):
    """A link that takes messages."""

    def can_take(self) -> bool: ...

    def deliver_one(self) -> bool:
        """Take one message and send it; False when none waits."""


class Consumers:
    """The links with credit, and the timer of the store. Made and used on the event loop."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._serving = False
        self._timer: asyncio.TimerHandle | None = None
        store.listener = self

    def add(self, link: Waiting) -> None:
        """It has credit."""
        if link not in self._waiting:
            self._waiting.append(link)
        self.available()

    def remove(self, link: Waiting) -> None:
        if link in self._waiting:
            self._waiting.remove(link)

    def available(self) -> None:
        if self._waiting and not self._serving:
            self._serving = True
            self._loop.call_soon(self._serve)

    def due_in(self, seconds: float) -> None:
        """A clock that stands still brings nothing by itself: who turns it has every store advance."""
        if self._clock.standing:
            return
        when = self._loop.time() + max(seconds, 0.0)
        if self._timer is None or when < self._timer.when():
            self.cancel()
            self._timer = self._loop.call_at(when, self.advance)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def advance(self) -> None:
        """Let happen what is due, and set the timer by the clock as it is now."""
        self.cancel()
        self._store.advance()
        seconds = self._store.next_due()
        if seconds is not None:
            self.due_in(seconds)

    def _serve(self) -> None:
        self._serving = False
        while self._waiting:
            link = self._waiting[0]
            if not link.can_take():
                self._waiting.popleft()
            elif not link.deliver_one():
                return
