"""Sending: a batch of jobs in as few messages of the protocol as their sizes allow.

A batch is taken whole or not at all, but a call may need several, and several queues. A message that cannot be sent at
all is refused before anything is sent. A delay rides on the message, so that delayed and other jobs share a batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

from azure.servicebus import ServiceBusMessage
from azure.servicebus import exceptions as sdk
from azure.servicebus.aio import ServiceBusSender
from msgspec import Struct

from jobpool.broker.values import NewMessage
from jobpool.clock import Clock
from jobpool.errors import LONGEST_WAIT_S, BackendUnavailable, InvalidJob, WriteRefused
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.errors import explain, too_large
from jobpool_backends.servicebus.internals import largest_message
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.records import COPY_GROWTH_BYTES, OVERHEAD_BYTES, Record, copy_id, new_record
from jobpool_backends.shared import grouped, micros


class Outgoing(Struct, frozen=True):
    """A record on its way to a queue."""

    queue: str
    record: Record
    due: float | None = None  # Unix time on the broker's clock; None = now
    message_id: str | None = None  # None = the job's own


class Producer:
    """The adder of messages to queues."""

    def __init__(self, namespace: Namespace, clock: Clock) -> None:
        self._namespace = namespace
        self._clock = clock
        self._last_enqueued_at = 0
        self._lock = threading.Lock()

    def add(self, messages: Sequence[NewMessage]) -> None:
        """Send new jobs, queue by queue.

        Raises `InvalidJob`: one is too large for its queue, and of that queue's none was sent. Raises
        `BackendUnavailable`, whose text says how many were sent before.
        """
        self._namespace.call(self.send([self.outgoing(message) for message in messages]))

    def outgoing(self, message: NewMessage, copy_of: str | None = None) -> Outgoing:
        """Return a new message as it is sent; with `copy_of`, its message id."""
        now = self._clock.wall()
        due = message.due if message.due is not None and message.due > now else None
        with self._lock:  # never the same microsecond twice
            at = self._last_enqueued_at = max(self._last_enqueued_at + 1, micros(now))
        return Outgoing(message.queue, new_record(message, at), due, copy_of)

    def delayed_copy(self, queue: str, record: Record, delay: float, sequence: int) -> Outgoing:
        """Return a copy of the message with this sequence number, to be fetched after `delay` seconds."""
        due = self._clock.wall() + min(delay, LONGEST_WAIT_S) if delay > 0 else None
        return Outgoing(queue, record, due, copy_id(record.id, "q", sequence))

    async def send(self, outgoing: Sequence[Outgoing], *, patiently: bool = False) -> None:
        """Send these, queue by queue. On the namespace's loop; raises as `add`.

        With `patiently` a batch whose connection broke is sent again, though it may have arrived: for copies, which a
        repeated settlement would send again anyway.
        """
        by_queue = grouped(outgoing, lambda each: each.queue)
        try:
            for queue, left in by_queue.items():
                address = self._namespace.address
                sending = self._namespace.queue(queue).sending
                work = partial(_send_in_batches, left, address)
                await sending.run(work, time.monotonic() + address.timeout, patiently=patiently)
        except BackendUnavailable as error:
            sent = len(outgoing) - sum(map(len, by_queue.values()))
            if not sent:
                raise
            raise type(error)(f"{error}; {sent} of {len(outgoing)} messages were sent before") from None


async def _send_in_batches(left: list[Outgoing], address: Address, sender: ServiceBusSender) -> None:
    """Send these to their queue, and take off the list what was sent."""
    limit = largest_message(sender)
    messages = [_write(each, limit) for each in left]
    while left:
        try:
            taken = await _send_batch(sender, messages[-len(left) :])
        except sdk.ServiceBusServerBusyError as error:  # a clear no, so that settlements of others need not wait
            raise WriteRefused(str(explain(error, address, left[0].queue))) from None
        del left[:taken]


async def _send_batch(sender: ServiceBusSender, messages: Sequence[ServiceBusMessage]) -> int:
    """Send as many as fit into a batch, one at least; return how many."""
    taken = 0
    if len(messages) > 1:
        batch = await sender.create_message_batch()
        try:
            for message in messages:
                batch.add_message(message)
                taken += 1
        except sdk.MessageSizeExceededError:
            pass  # the first may be too large for a batch, and not for a message of its own
    await sender.send_messages(batch if taken else messages[0])
    return taken or 1


def _write(outgoing: Outgoing, limit: int) -> ServiceBusMessage:
    """Return the message; a new one leaves room for the header of its copies, or it could not be retried."""
    is_copy = outgoing.message_id is not None
    record = outgoing.record.fits(limit) if is_copy else outgoing.record
    size = record.size + OVERHEAD_BYTES + (0 if is_copy else COPY_GROWTH_BYTES)
    if size > limit:
        raise InvalidJob(too_large(outgoing.queue, size, limit))
    return record.message(message_id=outgoing.message_id, due=outgoing.due)
