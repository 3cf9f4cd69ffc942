"""A session: AMQP 2.5. Its links, its windows, and the deliveries that the client has not settled."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from servicebus_peer import codes, replies
from servicebus_peer import encoding as e
from servicebus_peer.attaching import linked
from servicebus_peer.errors import AmqpError
from servicebus_peer.links import IncomingLink, Link
from servicebus_peer.outgoing import ConsumerLink, OutgoingLink, ReplyLink
from servicebus_peer.performatives import Attach, Begin, Detach, Disposition, Flow, Transfer
from servicebus_peer.replies import SESSION_WINDOW
from servicebus_peer.settling import settle

if TYPE_CHECKING:
    from servicebus_peer.connection import Connection


class Session:
    """One channel of a connection.

    Attributes:
        window: Transfers that the client will take.
        unsettled: By delivery number: the link, and the lock token.
    """

    def __init__(self, connection: Connection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.max_frame_size = connection.max_frame_size
        self.links: dict[int, Link] = {}
        self.window = begin.incoming_window
        self.unsettled: dict[int, tuple[ConsumerLink, uuid.UUID]] = {}
        self._channel = channel
        self._next_delivery = 0
        self._next_outgoing = 1
        self._next_incoming = begin.next_outgoing_id
        self._incoming_window = SESSION_WINDOW
        self.send(replies.begin(channel, self._next_outgoing))

    # --- sending ------------------------------------------------------------------------------------

    def send(self, body: bytes) -> None:
        self.connection.send(self._channel, body)

    def send_transfer(self, body: bytes) -> None:
        self._next_outgoing += 1
        self.window -= 1
        self.send(body)

    def next_delivery(self) -> int:
        self._next_delivery += 1
        return self._next_delivery - 1

    def send_flow(self, link: list[bytes] | None = None) -> None:
        session = [
            e.uint(self._next_incoming),
            e.uint(self._incoming_window),
            e.uint(self._next_outgoing),
            e.uint(SESSION_WINDOW),
        ]
        self.send(replies.flow(session, link))

    # --- what the client sends ----------------------------------------------------------------------

    def on_attach(self, asked: Attach) -> None:
        try:
            link, largest = linked(self, asked)
        except AmqpError as error:
            self.send(replies.refusal(asked))
            self.send(replies.detach(asked.handle, True, replies.error(error.condition, error.description)))
            return
        self.links[asked.handle] = link
        self.send(replies.attach(asked, largest))
        if isinstance(link, IncomingLink):
            link.grant()

    def on_flow(self, flow: Flow) -> None:
        """Its window, reckoned from its own count of transfers: AMQP 2.5.6."""
        seen = 1 if flow.next_incoming_id is None else flow.next_incoming_id
        self.window = flow.incoming_window - (self._next_outgoing - seen)
        if flow.handle is not None:
            link = self.links.get(flow.handle)
            if isinstance(link, OutgoingLink) and not link.closed:
                link.on_flow(flow)
            return
        if flow.echo:
            self.send_flow()
        for link in self.links.values():
            if isinstance(link, OutgoingLink) and not link.closed:
                link.use_credit()

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming += 1
        self._incoming_window -= 1
        if self._incoming_window < SESSION_WINDOW // 2:
            self._incoming_window = SESSION_WINDOW
            self.send_flow()
        link = self.links.get(transfer.handle)
        if isinstance(link, IncomingLink) and not link.closed:
            link.on_transfer(transfer, payload)

    def on_disposition(self, disposition: Disposition) -> None:
        if disposition.role is not codes.RECEIVER or disposition.state is None:
            return
        for number in self._numbers(disposition.first, disposition.last):
            link, token = self.unsettled.pop(number)
            link.use_credit()  # where many were unsettled, there is room for one now
            self._settle(number, link, token, disposition)

    def on_detach(self, detach: Detach) -> None:
        link = self.links.pop(detach.handle, None)
        if link is not None:
            link.detach(closed=detach.closed)

    # --- inside -------------------------------------------------------------------------------------

    def forget(self, link: Link) -> None:
        """No delivery of this link can be settled by a disposition any more."""
        for number in [number for number, (owner, _) in self.unsettled.items() if owner is link]:
            del self.unsettled[number]

    def reply_link(self, address: str) -> ReplyLink | None:
        """Where the replies of the node at this address go."""
        for link in self.links.values():
            if isinstance(link, ReplyLink) and not link.closed and link.address.lower() == address.lower():
                return link
        return None

    def end(self) -> None:
        for link in self.links.values():
            if not link.closed:
                link.end()

    def _numbers(self, first: int, last: int) -> list[int]:
        """Of unsettled deliveries, from `first` to `last`."""
        return [number for number in range(first, last + 1) if number in self.unsettled]

    def _settle(self, number: int, link: ConsumerLink, token: uuid.UUID, disposition: Disposition) -> None:
        assert disposition.state is not None
        faults = self.broker.faults
        try:
            faults.check("settle", link.store.name)
            outcome = settle(link.store, token, disposition.state)
        except AmqpError as error:
            outcome = replies.rejected(error.condition, error.description)
        if not disposition.settled:
            echo = replies.disposition(codes.SENDER, number, outcome)
            faults.reply("settle", lambda: self.send(echo))
