"""What the control port does when it is asked: each public method of `Orders` is an order, its arguments are JSON.

They are explained at the methods of `Control`, which have the same names.
"""

from __future__ import annotations

from typing import Any

from servicebus_peer import errors
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
        result = getattr(self, order.pop("order"))(**order)
        return await result if hasattr(result, "__await__") else result

    # --- queues -------------------------------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> None:
        self._broker.namespace.create(name, QueueProperties(**properties))

    def delete_queue(self, name: str) -> None:
        self._broker.delete(name)

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

    def turn(self, seconds: float) -> None:
        self._broker.turn(seconds)

    def set_clock(self, seconds: float) -> None:
        self._broker.set_clock(seconds)

    def now(self) -> float:
        return self._broker.clock.wall()

    # --- the network --------------------------------------------------------------------------------

    def connections(self) -> int:
        return len(self._broker.connections)

    def links(self) -> list[str]:
        return sorted(link.address for link in self._broker.links())

    def drop_connections(self) -> int:
        return self._broker.drop_connections()

    def close_connections(self) -> int:
        return self._broker.close_connections()

    def detach_links(self, match: str = "", *, management: bool = False, cbs: bool = False) -> int:
        return self._broker.detach_links(match, management=management, cbs=cbs)

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

    async def restart(self, keep_locks: bool = True) -> None:
        await self._broker.restart(keep_locks)

    # --- operations ---------------------------------------------------------------------------------

    def fail(
        self,
        operation: Operation,
        condition: str = errors.SERVER_BUSY,
        *,
        times: int = 1,
        match: str = "",
        description: str = "The service was unable to process the request; please retry the operation.",
        status: int = 503,
    ) -> None:
        error = AmqpError(condition, description, status)
        self._broker.faults.fail(operation, error, match, times)

    def lose_replies(self, operation: Operation, times: int = 1) -> None:
        self._broker.faults.losses[operation] = times

    def expire_locks(self, name: str = "") -> int:
        return self._broker.expire_locks(name)

    def limit_management_replies(self, most: int | None) -> None:
        self._broker.faults.management_replies = most

    def limit_unsettled(self, most: int | None) -> None:
        self._broker.faults.max_unsettled = MAX_UNSETTLED if most is None else most

    async def heal(self) -> None:
        await self._broker.heal()
