"""The queues of one peer, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from servicebus_peer import errors
from servicebus_peer.clock import Clock
from servicebus_peer.errors import AmqpError
from servicebus_peer.properties import QueueProperties
from servicebus_peer.store import SUB_QUEUE, Store

Status = Literal["Active", "Disabled", "SendDisabled", "ReceiveDisabled"]
"""As at the service: "Suspend and reactivate messaging entities (disable)"."""


@dataclass(eq=False)
class Queue:
    """A queue with its sub-queue."""

    name: str
    store: Store
    dead_letters: Store
    status: Status = "Active"

    def check_send(self) -> None:
        """Raises `AmqpError` when it is disabled for senders."""
        self._check("SendDisabled")

    def check_receive(self) -> None:
        """Raises `AmqpError` when it is disabled for receivers."""
        self._check("ReceiveDisabled")

    def _check(self, half: Status) -> None:
        if self.status in ("Disabled", half):
            raise AmqpError(
                errors.ENTITY_DISABLED, f"The messaging entity '{self.name}' is disabled: {self.status}.", 403
            )


class Namespace:
    """Names differ by more than their case.

    Args:
        auto_create: Whether looking for a queue makes it.
        on_store: Called with each new store.
    """

    def __init__(
        self,
        clock: Clock,
        auto_create: bool = False,
        on_store: Callable[[Store], None] = lambda _store: None,
    ) -> None:
        self._clock = clock
        self._auto_create = auto_create
        self._on_store = on_store
        self._queues: dict[str, Queue] = {}

    def __iter__(self) -> Iterator[Queue]:
        return iter(list(self._queues.values()))

    def create(self, name: str, properties: QueueProperties | None = None) -> Queue:
        """Make a queue. Raises `ValueError` for a name that one has."""
        if name.lower() in self._queues:
            raise ValueError(f"there is a queue {name!r} already")
        properties = properties or QueueProperties()
        dead_letters = Store(name + SUB_QUEUE, properties, self._clock)
        queue = Queue(name, Store(name, properties, self._clock, dead_letters), dead_letters)
        self._queues[name.lower()] = queue
        for store in (queue.store, queue.dead_letters):
            self._on_store(store)
        return queue

    def delete(self, name: str) -> Queue:
        """Raises `AmqpError` (404) when there is none."""
        queue = self.queue(name)
        del self._queues[queue.name.lower()]
        return queue

    def set_status(self, name: str, status: Status) -> None:
        self.queue(name).status = status

    def queue(self, name: str) -> Queue:
        """Raises `AmqpError` (404) when there is none."""
        found = self._queues.get(name.lower())
        if found is None and self._auto_create:
            return self.create(name)
        if found is None:
            raise AmqpError(errors.NOT_FOUND, f"The messaging entity '{name}' could not be found.", 404)
        return found

    def find(self, address: str) -> tuple[Queue, Store]:
        """The queue that an address leads to, and its store or that of its sub-queue."""
        if address.lower().endswith(SUB_QUEUE.lower()):
            queue = self.queue(address[: -len(SUB_QUEUE)])
            return queue, queue.dead_letters
        queue = self.queue(address)
        return queue, queue.store

    def store(self, address: str) -> Store:
        return self.find(address)[1]

    def stores(self) -> list[Store]:
        return [store for queue in self for store in (queue.store, queue.dead_letters)]
