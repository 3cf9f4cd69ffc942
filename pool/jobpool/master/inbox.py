"""Where the master's threads leave events for its loop, and how they wake it."""

from __future__ import annotations

import contextlib
import os
from collections import deque

from jobpool.master.events import Event


class Inbox:
    """Many writers, one reader. `put` never blocks and is cheap while the loop is awake: one wake-up a batch."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[Event] = deque()
        self._rung = False

    def put(self, event: Event) -> None:
        """Leave an event. Safe from any thread."""
        self._events.append(event)
        if not self._rung:
            self._rung = True
            os.eventfd_write(self.fd, 1)

    def take(self) -> list[Event]:
        """All events so far. Only the loop calls it."""
        # In this order, or a wake-up is lost: silence the bell, lower the flag, take. An event that comes before the
        # flag is down is taken now; one that comes after it rings again, for nothing at worst.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._rung = False
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def close(self) -> None:
        os.close(self.fd)
