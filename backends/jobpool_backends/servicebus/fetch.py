"""Leasing: what the queue has now becomes leases, in one round trip."""

from __future__ import annotations

import uuid

from jobpool.message.lease import JobLease, make_lease
from jobpool_backends.servicebus.leases import Held, HeldLeases
from jobpool_backends.servicebus.locks import Locks, RequestTime
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.receiver import Delivery
from jobpool_backends.servicebus.records import read
from jobpool_backends.shared import MICRO

MAX_FETCH_MESSAGES = 2000
"""Messages a fetch, whatever was asked for: a session has room for some 5,000 that are not settled."""


class Fetcher:
    """Leases messages."""

    def __init__(self, namespace: Namespace, leases: HeldLeases, locks: Locks, scheme: str) -> None:
        self._namespace = namespace
        self._leases = leases
        self._locks = locks
        self._scheme = scheme

    def fetch(self, queue: str, limit: int) -> list[JobLease]:
        """Return leases of messages that are there now. A lease lasts as long as the queue locks a message."""
        self._leases.prune(queue)
        client = self._namespace.queue(queue)
        asked = self._locks.now()
        deliveries = self._namespace.call(
            client.take(min(limit, MAX_FETCH_MESSAGES), asked.mono + self._namespace.address.timeout)
        )
        return [self._lease(queue, delivery, asked) for delivery in deliveries]

    def _lease(self, queue: str, delivery: Delivery, asked: RequestTime) -> JobLease:
        message = delivery.message
        record = read(message)
        ends = self._locks.end(queue, asked.earlier(delivery.received), delivery.locked_until)
        token = message.lock_token
        owner = token.hex if isinstance(token, uuid.UUID) else uuid.uuid4().hex
        deliveries = record.deliveries + (message.delivery_count or 0) + 1
        sequence = message.sequence_number or 0
        self._leases.add(Held(delivery, record, queue, sequence, owner, ends, deliveries))
        return make_lease(
            record.id,
            queue,
            record.body,
            sequence,
            owner,
            ends,
            self._scheme,
            record.attempts,
            record.crashes,
            deliveries,
            record.enqueued_at / MICRO,
            record.begun,
        )
