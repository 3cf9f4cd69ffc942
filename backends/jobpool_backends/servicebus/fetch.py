"""Fetching: what the queue has now becomes leases, in one round trip. Waiting: on several queues at once.

One receiver of each queue waits for a message, and the first that gets one ends all waits. The message is kept for the
fetch that follows (queue_client.py). A queue that is missing does not stop the wait for the others. If none of them is
there, that is an error, and for some seconds the next wait raises it at once.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.lease import JobLease, make_lease
from jobpool_backends.servicebus.leases import Held, HeldLeases, Locks, RequestTime
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.queue_client import GIVE_BACK_LIMIT_S, QueueClient
from jobpool_backends.servicebus.receiver import Delivery
from jobpool_backends.servicebus.records import read
from jobpool_backends.shared import MICRO

MAX_FETCH_MESSAGES = 2000
"""Messages a fetch, whatever was asked for: a session has room for some 5,000 that are not settled."""

RECEIVER_CHECK_S = 10.0
"""Seconds after which a receiver that waits is asked for an answer: one that is deaf is found out then."""

MISSING_KEPT_S = 5.0  # seconds for which a queue that was not there is not looked for


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
        deadline = asked.mono + self._namespace.address.timeout
        deliveries = self._namespace.call(client.take(min(limit, MAX_FETCH_MESSAGES), deadline))
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


class Waiter:
    """The wait for messages."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._missing: dict[str, tuple[float, ConfigurationError]] = {}
        self._waited: set[str] = set()
        self._closed = False

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Return the first of these that has something to take; None when none has within `timeout` seconds.

        Raises `BackendUnavailable`, or `ConfigurationError` if none of the queues is there.
        """
        clients = [self._namespace.queue(queue) for queue in dict.fromkeys(queues)]
        self._waited.update(queues)
        if self._closed:
            return None
        limit, spare = max(0.0, timeout), self._namespace.address.timeout
        return self._namespace.call(self._wait_any(clients, time.monotonic() + limit), limit + spare)

    def close(self) -> None:
        """End the waits of others; what came for them and was never fetched goes back to its queue. No more waits."""
        self._closed = True
        waited, self._waited = self._waited, set()
        if waited:
            with suppress(BackendUnavailable):
                self._namespace.call(self._leave([self._namespace.queue(name) for name in waited]), GIVE_BACK_LIMIT_S)

    async def _leave(self, clients: Sequence[QueueClient]) -> None:
        for client in clients:
            client.stop_waiting()
        await asyncio.gather(*(client.give_back() for client in clients), return_exceptions=True)

    async def _wait_any(self, clients: Sequence[QueueClient], deadline: float) -> str | None:
        there = self._without_missing(clients)
        stop = asyncio.Event()
        tasks = {asyncio.ensure_future(self._wait_one(each, deadline, stop)): each for each in there}
        try:
            return await self._first(tasks)
        finally:
            stop.set()
            for task, client in tasks.items():
                if not task.done():
                    client.stop_waiting()
                    task.add_done_callback(_ignore)

    async def _first(self, tasks: dict[asyncio.Task[bool], QueueClient]) -> str | None:
        waiting = set(tasks)
        trouble: BaseException | None = None
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None and task.result():
                    return tasks[task].name
                if isinstance(error, ConfigurationError):
                    self._missing[tasks[task].name] = (time.monotonic(), error)
                    trouble = error
                elif error is not None:
                    raise error
        if trouble is not None and all(task.exception() is not None for task in tasks):
            raise trouble
        return None

    async def _wait_one(self, client: QueueClient, deadline: float, stop: asyncio.Event) -> bool:
        def unwanted() -> bool:
            return stop.is_set() or self._closed or client.closed

        while not unwanted():
            now = time.monotonic()
            if await client.wait(min(deadline, now + RECEIVER_CHECK_S), unwanted):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0)  # a caller that wanted the receiver goes first
        return False

    def _without_missing(self, clients: Sequence[QueueClient]) -> list[QueueClient]:
        """Return the clients, but for those that were missing just now. Raises when that is all of them."""
        now = time.monotonic()
        recent = {name: error for name, (at, error) in self._missing.items() if now - at < MISSING_KEPT_S}
        there = [client for client in clients if client.name not in recent]
        if not there and clients:
            raise recent[clients[0].name]
        return there


def _ignore(task: asyncio.Task[bool]) -> None:
    """Ignore the result of a wait that nobody waits for any more; the next one tells it."""
    if not task.cancelled():
        task.exception()
