"""Links that send to a client: the replies of a node, or the messages of a queue. Their credit: AMQP 2.6.7."""

from __future__ import annotations

import uuid
from collections import deque
from typing import TYPE_CHECKING

from servicebus_peer import replies
from servicebus_peer.consumers import Consumers
from servicebus_peer.links import Link
from servicebus_peer.performatives import Attach, Flow
from servicebus_peer.store import Store

if TYPE_CHECKING:
    from servicebus_peer.session import Session

FRAME_OVERHEAD = 64
"""Bytes of a transfer frame without its payload, at most: 8 + 3 + 9 + 6 numbers of 5 + a tag of 16."""


class OutgoingLink(Link):
    """Sends, as far as its credit and the session's window reach."""

    def can_send(self) -> bool:
        return not self.closed and self.credit > 0 and self.session.window > 0

    def on_flow(self, flow: Flow) -> None:
        """The client's credit, reckoned from its own count of deliveries: AMQP 2.6.7."""
        if flow.link_credit is not None:
            seen = self.delivery_count if flow.delivery_count is None else flow.delivery_count
            self.credit = max(seen + flow.link_credit - self.delivery_count, 0)
        if flow.drain:
            self.drain()
            self.delivery_count += self.credit
            self.credit = 0
        else:
            self.use_credit()
        if flow.drain or flow.echo:
            self.session.send_flow(self.state(flow.drain))

    def use_credit(self) -> None:
        """Send what there is, now or soon."""

    def drain(self) -> None:
        """Send what there is, before this returns."""
        self.use_credit()

    def transfer(self, payload: bytes, tag: bytes, settled: bool) -> int:
        """One delivery, in as many frames as it needs; its number."""
        self.credit -= 1
        self.delivery_count += 1
        number = self.session.next_delivery()
        room = self.session.max_frame_size - FRAME_OVERHEAD
        for start in range(0, len(payload) or 1, room):
            more = start + room < len(payload)
            head = replies.transfer(self.handle, number, tag, settled, more)
            self.session.send_transfer(head + payload[start : start + room])
        return number


class ReplyLink(OutgoingLink):
    """Takes replies to requests. What has no credit waits for it: a client that gives no more gets no more."""

    def __init__(self, session: Session, asked: Attach, address: str) -> None:
        super().__init__(session, asked, address)
        self._pending: deque[bytes] = deque()
        self._sent = 0

    def reply(self, payload: bytes) -> None:
        self._pending.append(payload)
        self.use_credit()

    def use_credit(self) -> None:
        while self._pending and self.can_send() and not self._used_up():
            self._sent += 1
            self.transfer(self._pending.popleft(), uuid.uuid4().bytes, settled=True)

    def _used_up(self) -> bool:
        """A test has asked for an end that comes sooner than that of the credit."""
        most = self.session.broker.faults.management_replies
        return most is not None and self.address != "$cbs" and self._sent >= most


class ConsumerLink(OutgoingLink):
    """Takes the messages of a queue, under a lock each.

    The delivery tag is the lock token, in the byte order of .NET: the operations guide, "Message Renew Lock".
    """

    def __init__(self, session: Session, asked: Attach, address: str, store: Store, consumers: Consumers) -> None:
        super().__init__(session, asked, address)
        self.store = store
        self._consumers = consumers

    def can_take(self) -> bool:
        return self.can_send() and len(self.session.unsettled) < self.session.broker.faults.max_unsettled

    def use_credit(self) -> None:
        if self.can_take():
            self._consumers.add(self)

    def drain(self) -> None:
        while self.can_take() and self.deliver_one():
            pass

    def deliver_one(self) -> bool:
        message = self.store.take()
        if message is None:
            return False
        assert message.lock is not None
        token = message.lock.token
        number = self.transfer(message.encoded(), token.bytes_le, settled=False)
        self.session.unsettled[number] = (self, token)
        return True

    def end(self) -> None:
        """Its deliveries can no longer be settled here, only through $management: their locks stay."""
        super().end()
        self._consumers.remove(self)
        self.session.forget(self)
