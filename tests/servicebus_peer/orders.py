"""What the control port does when it is asked: each method of `Orders`, or else of `Broker`, is an order.

Its arguments are JSON. Orders are explained at the methods of `Control`, which have the same names.
"""

from __future__ import annotations

from typing import Any

from servicebus_peer.broker import Broker
from servicebus_peer.errors import AmqpError
from servicebus_peer.faults import MAX_UNSETTLED, Operation
from servicebus_peer.looks import counts_of, shown
from servicebus_peer.namespace import Status
from servicebus_peer.properties import QueueProperties


class Orders:
    """Of one broker, on its event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def carry_out(self, order: dict[str, Any]) -> Any:
        """Do `order["order"]` with the rest as arguments. Raises what that raises."""
        name = order.pop("order")
        result = getattr(self if hasattr(self, name) else self._broker, name)(**order)
        return await result if hasattr(result, "__await__") else result

    # --- queues -------------------------------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> None:
        self._broker.namespace.create(name, QueueProperties(**properties))

    def set_status(self, name: str, status: Status) -> None:
        self._broker.namespace.set_status(name, status)

    def queues(self) -> list[str]:
        return [queue.name for queue in self._broker.namespace]

    def counts(self, name: str) -> dict[str, Any]:
        return counts_of(self._broker.namespace.store(name))

    def messages(self, name: str) -> list[dict[str, Any]]:
        return [shown(message) for message in self._broker.namespace.store(name).peek(0, 1 << 62)]

    def purge(self, name: str) -> int:
        return self._broker.namespace.store(name).purge()

    # --- time ---------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._broker.clock.wall()

    # --- the network --------------------------------------------------------------------------------

    def connections(self) -> int:
        return len(self._broker.connections)

    def links(self) -> list[str]:
        return sorted(link.address for link in self._broker.links())

    async def refuse(self, on: bool = True) -> None:
        if on:
            self._broker.refuse()
        else:
            await self._broker.listen()

    def stall(self, on: bool = True, *, keep: bool = True) -> None:
        if on:
            self._broker.stall()
        else:
            self._broker.resume(keep)

    # --- operations ---------------------------------------------------------------------------------

    def fail(
        self, operation: Operation, condition: str, *, times: int, match: str, description: str, status: int
    ) -> None:
        error = AmqpError(condition, description, status)
        self._broker.faults.fail(operation, error, match, times)

    def lose_replies(self, operation: Operation, times: int = 1) -> None:
        self._broker.faults.losses[operation] = times

    def limit_management_replies(self, most: int | None) -> None:
        self._broker.faults.management_replies = most

    def limit_unsettled(self, most: int | None) -> None:
        self._broker.faults.max_unsettled = MAX_UNSETTLED if most is None else most
