"""Links: AMQP 2.6. What both directions have, and the one that takes what a client sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from servicebus_peer import codes, replies
from servicebus_peer import encoding as e
from servicebus_peer.errors import AmqpError
from servicebus_peer.faults import Operation
from servicebus_peer.performatives import Attach, Transfer

if TYPE_CHECKING:
    from servicebus_peer.session import Session

CREDIT = 1000
"""Messages that a sender may send ahead; it is given anew when half of it is used."""


class Link:
    """What both directions have."""

    def __init__(self, session: Session, asked: Attach, address: str) -> None:
        self.session = session
        self.handle = asked.handle
        self.address = address
        self.closed = False
        self.delivery_count = 0
        self.credit = 0

    def detach(self, condition: str | None = None, description: str = "", *, closed: bool = True) -> None:
        """End it, and tell the client why."""
        if not self.closed:
            self.end()
            self.session.send(replies.detach(self.handle, closed, replies.maybe_error(condition, description)))

    def end(self) -> None:
        """Without a word: the connection has gone, or somebody else says it."""
        self.closed = True

    def state(self, drain: bool = False) -> list[bytes]:
        """The fields of `flow` that speak of a link."""
        return [
            e.uint(self.handle),
            e.uint(self.delivery_count),
            e.uint(self.credit),
            e.NULL,
            e.boolean(drain),
            e.FALSE,
            e.NULL,
        ]


class IncomingLink(Link):
    """Takes deliveries, one after the other.

    Args:
        operation: Whose replies its dispositions are, for faults; None for requests, which have replies of their own.
        take: Called with payload and message format; raises `AmqpError` to reject the delivery.
    """

    def __init__(
        self,
        session: Session,
        asked: Attach,
        address: str,
        operation: Operation | None,
        take: Callable[[bytes, int], None],
    ) -> None:
        super().__init__(session, asked, address)
        self._operation = operation
        self._take = take
        self._first: Transfer | None = None
        self._payload = bytearray()

    def grant(self) -> None:
        """Give ample credit, at once: the protocol guide, "Flow control"."""
        self.credit = CREDIT
        self.session.send_flow(self.state())

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        if self._first is None:
            self._first = transfer
        self._payload += payload
        if not transfer.more:
            self._complete(self._first)

    def _complete(self, first: Transfer) -> None:
        payload = bytes(self._payload)
        self._first = None
        self._payload.clear()
        self.delivery_count += 1
        self.credit -= 1
        outcome = self._outcome(payload, first.message_format)
        if not first.settled and not self.closed:
            self._answer(replies.disposition(codes.RECEIVER, first.delivery_id or 0, outcome))
        if self.credit < CREDIT // 2 and not self.closed:
            self.grant()

    def _answer(self, disposition: bytes) -> None:
        if self._operation is None:
            self.session.send(disposition)
        else:
            self.session.broker.faults.reply(self._operation, lambda: self.session.send(disposition))

    def _outcome(self, payload: bytes, message_format: int) -> bytes:
        try:
            self._take(payload, message_format)
        except AmqpError as error:
            return replies.rejected(error.condition, error.description)
        return replies.ACCEPTED
