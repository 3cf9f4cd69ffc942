"""The messages of one store: by number, by what they wait for, and by when it comes. Does no I/O.

Source: "Message sequencing and timestamps" for numbers and schedules, "Message browsing" for `peek`.
"""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from servicebus_peer import errors
from servicebus_peer.clock import Clock
from servicebus_peer.errors import AmqpError
from servicebus_peer.message import Message, State


class Listener(Protocol):
    """Who wants to know of changes in a store."""

    def available(self) -> None:
        """There is a message to take."""

    def due_in(self, seconds: float) -> None:
        """Something becomes due then: `advance` is to be called."""


class Shelf(ABC):
    """What `Store` is built on."""

    def __init__(self, clock: Clock) -> None:
        self.listener: Listener | None = None
        self._clock = clock
        self._numbers = itertools.count(1)
        # By sequence number, and in its order: who gets a new number is put last.
        self._messages: dict[int, Message] = {}
        # Heaps. Entries whose message has gone, or waits no more, are skipped when they come up.
        self._waiting: list[int] = []
        self._schedule: list[tuple[float, int]] = []

    @abstractmethod
    def advance(self) -> None:
        """Let happen what is due."""

    # --- looking ------------------------------------------------------------------------------------

    def peek(self, first: int, most: int) -> list[Message]:
        """Messages in every state, from the number `first` on, in the order of their numbers."""
        self.advance()
        return list(islice((message for number, message in self._messages.items() if number >= first), most))

    def count(self) -> dict[str, int]:
        """Messages by what they do now: ready, locked, scheduled."""
        found = dict.fromkeys(("ready", "locked", "scheduled"), 0)
        for message in self._messages.values():
            if message.lock is not None:
                found["locked"] += 1
            else:
                found["ready" if message.state is State.ACTIVE else message.state.name.lower()] += 1
        return found

    # --- for Store ----------------------------------------------------------------------------------

    def _number(self, message: Message) -> int:
        number = message.sequence_number = next(self._numbers)
        self._messages[number] = message
        return number

    def _put_off(self, message: Message, until: float) -> None:
        message.state = State.SCHEDULED
        heapq.heappush(self._schedule, (until, message.sequence_number))
        self._due_in(until - message.enqueued)

    def _begin(self) -> None:
        """What was scheduled is enqueued anew, with a new number, when its time has come."""
        now = self._clock.wall()
        while self._schedule and self._schedule[0][0] <= now:
            moment, number = heapq.heappop(self._schedule)
            message = self._messages.get(number)
            if message is not None and message.state is State.SCHEDULED:
                del self._messages[number]
                message.enqueued = max(moment, message.enqueued)
                message.state = State.ACTIVE
                self._number(message)
                self._wait(message)

    def _next_on_shelf(self) -> list[float]:
        """Seconds until something begins."""
        return [self._schedule[0][0] - self._clock.wall()] if self._schedule else []

    def _clear(self) -> None:
        self._messages.clear()
        for heap in (self._waiting, self._schedule):
            heap.clear()

    def _wait(self, message: Message) -> None:
        """It may be taken."""
        heapq.heappush(self._waiting, message.sequence_number)
        if self.listener is not None:
            self.listener.available()

    def _first(self) -> Message | None:
        self.advance()
        while self._waiting:
            message = self._messages.get(heapq.heappop(self._waiting))
            if message is not None and message.lock is None and message.state is State.ACTIVE:
                return message
        return None

    def _scheduled(self, numbers: Iterable[int]) -> list[Message]:
        found = [self._messages.get(number) for number in numbers]
        there = [message for message in found if message and message.state is State.SCHEDULED]
        if len(there) != len(found):
            raise AmqpError(errors.MESSAGE_NOT_FOUND, "there is no scheduled message of that sequence number", 404)
        return there

    def _due_in(self, seconds: float) -> None:
        if self.listener is not None:
            self.listener.due_in(seconds)
