"""The client of a peer's control port."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any

from servicebus_peer.errors import SERVER_BUSY
from servicebus_peer.faults import Operation
from servicebus_peer.looks import Counts, MessageLook, look
from servicebus_peer.namespace import Status

LIMIT = 10.0
"""Seconds for an order to be carried out."""


class ControlError(Exception):
    """The peer did not do what it was asked; the text says why."""


@dataclass(frozen=True)
class Control:
    """Has a peer do things; each is done when its method returns, within `LIMIT` seconds.

    Every call makes a connection of its own: to be used from any thread, from any process, and after a fork.
    Raises `ControlError` for what the peer refuses, `OSError` when it is not there.
    """

    host: str
    port: int

    # --- queues -------------------------------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> None:
        """Make a queue; `properties`: fields of `QueueProperties`, over the peer's defaults."""
        self._ask("create_queue", name=name, **properties)

    def delete_queue(self, name: str) -> None:
        """With its messages; links to it are detached."""
        self._ask("delete_queue", name=name)

    def set_status(self, name: str, status: Status) -> None:
        """Disable it for new links, and for what links send; or make it active again."""
        self._ask("set_status", name=name, status=status)

    def queues(self) -> list[str]:
        """Their names."""
        return list(self._ask("queues"))

    def counts(self, name: str) -> Counts:
        """Of a queue, or with "/$DeadLetterQueue" after its name of the sub-queue."""
        return Counts(**self._ask("counts", name=name))

    def messages(self, name: str) -> list[MessageLook]:
        """All of them, in every state, in the order of their numbers; the name as for `counts`."""
        return [look(fields) for fields in self._ask("messages", name=name)]

    def purge(self, name: str) -> int:
        """Delete all its messages; how many. The name as for `counts`."""
        return int(self._ask("purge", name=name))

    # --- time ---------------------------------------------------------------------------------------

    def turn(self, seconds: float) -> None:
        """Move the peer's clock ahead; what becomes due (locks, schedules) has happened on return."""
        self._ask("turn", seconds=seconds)

    def set_clock(self, seconds: float) -> None:
        """Set the peer's wall clock on, or back below 0. Locks do not go by it."""
        self._ask("set_clock", seconds=seconds)

    def now(self) -> float:
        """Unix time on the peer's clock."""
        return float(self._ask("now"))

    # --- the network --------------------------------------------------------------------------------

    def connections(self) -> int:
        """How many are open."""
        return int(self._ask("connections"))

    def links(self) -> list[str]:
        """The addresses of those that are attached, sorted."""
        return list(self._ask("links"))

    def drop_connections(self) -> int:
        """Reset all; how many. New ones are taken."""
        return int(self._ask("drop_connections"))

    def close_connections(self) -> int:
        """End all by AMQP's `close`; how many. New ones are taken."""
        return int(self._ask("close_connections"))

    def detach_links(self, match: str = "", *, management: bool = False, cbs: bool = False) -> int:
        """Detach the links whose address contains `match`; how many.

        Args:
            match: "" = all links.
            management: Those to $management too; they only: `detach_links("$management", management=True)`.
            cbs: Those to $cbs too; they only: `detach_links("$cbs", cbs=True)`.
        """
        return int(self._ask("detach_links", match=match, management=management, cbs=cbs))

    def refuse(self, on: bool = True) -> None:
        """Refuse new connections, at the socket, until `refuse(False)` or `heal`. Those that are open go on."""
        self._ask("refuse", on=on)

    def stall(self, on: bool = True, *, keep: bool = True) -> None:
        """Let nothing pass on any connection, new ones included, and close none, until `stall(False)`.

        Then what was held arrives; or, with `keep=False`, it is lost, and these connections never work again, without
        a word to the clients: half-open.
        """
        self._ask("stall", on=on, keep=keep)

    def restart(self, keep_locks: bool = True) -> None:
        """Close the listening socket, reset all connections, and listen again on the same port. The messages stay.

        `keep_locks=False`: the locks end, and their deliveries do not count as failed.
        """
        self._ask("restart", keep_locks=keep_locks)

    # --- operations ---------------------------------------------------------------------------------

    def fail(
        self,
        operation: Operation,
        condition: str = SERVER_BUSY,
        *,
        times: int = 1,
        match: str = "",
        description: str = "The service was unable to process the request; please retry the operation.",
        status: int = 503,
    ) -> None:
        """Have the next `times` operations refused, and not done.

        Args:
            operation: See `servicebus_peer.faults`.
            condition: The AMQP condition that clients are told.
            times: How many.
            match: Only those whose name contains it: the address for "attach", the queue for "send" and "settle", the
                operation (com.microsoft:renew-lock) for "management".
            description: What clients are told.
            status: In the replies of $management.
        """
        words = {"condition": condition, "times": times, "match": match, "description": description, "status": status}
        self._ask("fail", operation=operation, **words)

    def lose_replies(self, operation: Operation, times: int = 1) -> None:
        """Do the next `times` of these operations, and never reply; 0 = no more."""
        self._ask("lose_replies", operation=operation, times=times)

    def expire_locks(self, name: str = "") -> int:
        """End all locks now, as if their time were over; how many. The name as for `counts`; "" = every queue."""
        return int(self._ask("expire_locks", name=name))

    def limit_management_replies(self, most: int | None) -> None:
        """Send each link for replies of $management so many in all; None = as many as its credit allows."""
        self._ask("limit_management_replies", most=most)

    def limit_unsettled(self, most: int | None) -> None:
        """Send no more to a session that has so many deliveries unsettled; None = 5000, as the service."""
        self._ask("limit_unsettled", most=most)

    def heal(self) -> None:
        """End every fault; what was done stays done."""
        self._ask("heal")

    def _ask(self, order: str, **words: Any) -> Any:
        with socket.create_connection((self.host, self.port), LIMIT) as connection, connection.makefile("rb") as lines:
            connection.sendall(json.dumps({"order": order, **words}).encode() + b"\n")
            line = lines.readline()
        if not line:
            raise ControlError(f"the peer hung up on {order!r}")
        answer = json.loads(line)
        if "error" in answer:
            raise ControlError(answer["error"])
        return answer["ok"]
