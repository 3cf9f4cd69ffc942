"""The messages of one queue, or of its dead-letter sub-queue: what may be done with them, and when. Does no I/O.

The life of a message:

    enqueued --> scheduled --(its time)--> waiting --(taken)--> locked --> completed: gone
                     |                       ^  |                 | '---> dead-lettered: in the sub-queue
                 cancelled              (abandoned, released,     |
                                         lock expired)            |
                                             '--------------------'

Sources: "Message transfers, locks, and settlement"; "Message sequencing and timestamps" for numbers and schedules;
"Message browsing" for `peek`; "Overview of Service Bus dead-letter queues" for what is dead-lettered and why.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from servicebus_peer import errors
from servicebus_peer.clock import Clock
from servicebus_peer.errors import AmqpError
from servicebus_peer.locks import Locks
from servicebus_peer.message import Message, State
from servicebus_peer.properties import QueueProperties

SUB_QUEUE = "/$DeadLetterQueue"


class Listener(Protocol):
    """Who wants to know of changes in a store."""

    def available(self) -> None:
        """There is a message to take."""

    def due_in(self, seconds: float) -> None:
        """Something becomes due then: `advance` is to be called."""


class Store:
    """All methods first let happen what the clock says is due.

    Args:
        name: Of the queue, for errors.
        dead_letters: The sub-queue; None for a sub-queue, whose messages are not dead-lettered.
    """

    def __init__(self, name: str, properties: QueueProperties, clock: Clock, dead_letters: Store | None = None) -> None:
        self.listener: Listener | None = None
        self.name = name
        self.properties = properties
        self.dead_letters = dead_letters
        self.tally = Counter[str]()
        self._clock = clock
        self._locks = Locks(properties.lock_duration, clock)
        self._numbers = itertools.count(1)
        # By sequence number, and in its order: who gets a new number is put last.
        self._messages: dict[int, Message] = {}
        # Heaps. Entries whose message has gone, or waits no more, are skipped when they come up.
        self._waiting: list[int] = []
        self._schedule: list[tuple[float, int]] = []

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

    # --- sending ------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> int:
        """Its sequence number. Raises `AmqpError` for one that is too large."""
        self.check_size(message.size)
        self.tally["enqueued"] += 1
        message.enqueued = self._clock.wall()
        number = self._number(message)
        message.enqueued_sequence_number = number
        if message.scheduled_for is not None and message.scheduled_for > message.enqueued:
            self._put_off(message, message.scheduled_for)
        else:
            self._wait(message)
        return number

    def check_size(self, size: int) -> None:
        """Source: "Service Bus quotas". Raises `AmqpError`."""
        most = self.properties.max_message_size
        if size > most:
            raise AmqpError(errors.MESSAGE_SIZE_EXCEEDED, f"the message has {size} bytes; the limit is {most}")

    def cancel(self, numbers: Iterable[int]) -> None:
        """Delete scheduled messages; none of them if one is not there (`AmqpError`, 404)."""
        self.advance()
        for message in self._scheduled(numbers):
            del self._messages[message.sequence_number]

    def adopt(self, message: Message) -> None:
        """Take in a message of another store: a dead letter."""
        message.state = State.ACTIVE
        self._number(message)
        self._wait(message)

    # --- receiving ----------------------------------------------------------------------------------

    def take(self) -> Message | None:
        """Lock the first message that waits; None when none does."""
        message = self._first()
        if message is not None:
            self._locks.take(message)
            self.tally["delivered"] += 1
            self._due_in(self.properties.lock_duration)
        return message

    # --- locks --------------------------------------------------------------------------------------

    def renew(self, token: uuid.UUID) -> int:
        """When the lock ends now, in ms of Unix time."""
        self.advance()
        until = self._locks.renew(token)
        self.tally["renewed"] += 1
        return until

    def check_locks(self, tokens: Iterable[uuid.UUID]) -> None:
        """Raises the error `lock_lost` unless all hold."""
        self.advance()
        for token in tokens:
            self._locks.find(token)

    def expire_locks(self) -> int:
        """End all locks now; how many."""
        tokens = list(self._locks)
        self._expire(tokens)
        return len(tokens)

    def release_locks(self) -> None:
        """End all locks, and count no delivery as failed."""
        for token in self._locks:
            self._wait(self._locks.end(token))

    # --- settling: each ends the lock, or raises the error `lock_lost` -------------------------------

    def complete(self, token: uuid.UUID) -> None:
        del self._messages[self._unlock(token).sequence_number]
        self.tally["completed"] += 1

    def abandon(self, token: uuid.UUID) -> None:
        """Back to its place in the queue, one more delivery failed."""
        message = self._unlock(token)
        self.tally["abandoned"] += 1
        self._failed(message)

    def release(self, token: uuid.UUID) -> None:
        """Back to its place in the queue, and nothing is counted."""
        message = self._unlock(token)
        self.tally["released"] += 1
        self._wait(message)

    def dead_letter(self, token: uuid.UUID, reason: str | None, description: str | None) -> None:
        self._bury(self._unlock(token), reason, description)

    # --- time ---------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Let happen what is due."""
        if self._locks:
            self._expire(self._locks.overdue())
        self._begin()

    def next_due(self) -> float | None:
        """Seconds until something is due; None = nothing ever is. Below 0: it is due already."""
        moments = [self._schedule[0][0] - self._clock.wall()] if self._schedule else []
        lock = self._locks.first_end()
        if lock is not None:
            moments.append(lock - self._clock.monotonic())
        return min(moments, default=None)

    def purge(self) -> int:
        """Delete every message, whatever its state; how many."""
        count = len(self._messages)
        for held in (self._messages, self._waiting, self._schedule):
            held.clear()
        self._locks = Locks(self.properties.lock_duration, self._clock)
        return count

    # --- inside -------------------------------------------------------------------------------------

    def _unlock(self, token: uuid.UUID) -> Message:
        self.advance()
        return self._locks.end(token)

    def _expire(self, tokens: Iterable[uuid.UUID]) -> None:
        for token in tokens:
            self.tally["lost_locks"] += 1
            self._failed(self._locks.end(token))

    def _failed(self, message: Message) -> None:
        message.delivery_count += 1
        if self.dead_letters is not None and message.delivery_count >= self.properties.max_delivery_count:
            self._bury(
                message,
                "MaxDeliveryCountExceeded",
                f"Message could not be consumed after {message.delivery_count} delivery attempts.",
            )
        else:
            self._wait(message)

    def _bury(self, message: Message, reason: str | None, description: str | None) -> None:
        """Reason and description are application properties (the protocol guide, and the page on dead letters)."""
        assert self.dead_letters is not None
        for key, text in (("DeadLetterReason", reason), ("DeadLetterErrorDescription", description)):
            if text is not None:
                message.application_properties[key] = text
        del self._messages[message.sequence_number]
        self.tally["dead_lettered"] += 1
        self.dead_letters.adopt(message)

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

    def _wait(self, message: Message) -> None:
        """Let it be taken."""
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
