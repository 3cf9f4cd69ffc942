"""How other threads see the pool's state: the loop's thread makes what they ask for, between two of its turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.state import Pool

T = TypeVar("T")

CALL_TIMEOUT_S = 2.0
"""Seconds for which a thread waits: a loop that takes longer is in trouble, and says so elsewhere."""


class LoopCalls:
    """Safe from any thread."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: set[SimpleQueue[Any]] = set()

    def ask(self, make: Callable[[Pool], T], patience: float = CALL_TIMEOUT_S) -> T | None:
        """What `make` returned on the loop's thread. None: it did not come to it within `patience` seconds, or ends.

        With None, `make` was not called and never will be: so it may take something away, as history's does.
        """
        answer: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            if self._closed:
                return None
            self._waiting.add(answer)
            self._inbox.put(ev.Asked(lambda pool: self._make(make, pool, answer)))
        try:
            return answer.get(timeout=patience)  # type: ignore[no-any-return]
        except Empty:
            return answer.get() if self._is_taken_up(answer) else None

    def _make(self, make: Callable[[Pool], T], pool: Pool, answer: SimpleQueue[Any]) -> None:
        if self._is_taken_up(answer):
            return
        made: T | None = None
        try:
            made = make(pool)
        finally:
            answer.put(made)  # also when that failed: nobody is to wait for ever

    def _is_taken_up(self, answer: SimpleQueue[Any]) -> bool:
        """Whether the other side was here first; else the caller has taken it up, or given it up, by this."""
        with self._lock:
            if answer not in self._waiting:
                return True
            self._waiting.discard(answer)
            return False

    def close(self) -> None:
        """Whoever waits gets None, and whoever comes from now on."""
        with self._lock:
            self._closed = True
            for answer in self._waiting:
                answer.put(None)
            self._waiting.clear()
