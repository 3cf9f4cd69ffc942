"""The leases of this client: how they are fetched, awaited and held, and when they end.

The broker knows a lock only by its token. So a settlement that is late by our own clock, or comes from another owner,
never reaches it. A lease ends by this machine's clock, counted from before the request. The broker tells the end of a
lock on *its* clock. A sooner end than expected means that the queue's locks are shorter than the option `lock` says, or
that the clocks differ. The sooner end is taken then: it costs a renewal at most. A lease that ends too late costs a job
that runs twice.

To wait, one receiver of each queue waits for a message, and the first that gets one ends all waits. The message is kept
for the fetch that follows (queue_client.py). A queue that is missing does not stop the wait for the others. If none of
them is there, that is an error, and for some seconds the next wait raises it at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Mapping, Sequence

from msgspec import Struct

from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.internals import log
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.queue_client import Delivery, QueueClient
from jobpool_backends.servicebus.records import Record, read
from jobpool_backends.shared import MICRO

MAX_FETCH_MESSAGES = 2000  # at most: a session has room for some 5,000 that are not settled
RECEIVER_CHECK_S = 10.0  # after which a receiver that waits is asked for an answer: one that is deaf is found out then
MISSING_KEPT_S = 5.0  # seconds for which a queue that was not there is not looked for
EXPIRED_KEPT_S = 60.0  # time for which a lease that ran out is known as one that did
CLOCK_TOLERANCE_S = 1.0  # difference of clocks below which there is no warning
WARNING_PAUSE_S = 600.0


class Held(Struct, eq=False):
    """One lease."""

    delivery: Delivery
    record: Record
    queue: str
    sequence: int
    owner_token: str
    expires_at: float  # on the backend's clock, as the lease's
    deliveries: int  # all so far, this one included
    copied: bool = False  # True if a copy is in a queue already, for a settlement that was not carried out to its end
    lost: bool = False  # the broker said that the lock is gone


class HeldLeases:
    """The leases of one backend. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._held: dict[str, dict[int, Held]] = {}

    def of(self, queue: str) -> Mapping[int, Held]:
        """Return the leases of a queue that still run, by the messages' sequence numbers."""
        now = self._clock.boot()
        with self._lock:
            return {number: held for number, held in self._held.get(queue, {}).items() if held.expires_at > now}

    def add(self, held: Held) -> None:
        """Add a new lease. An older one on the same message must have run out."""
        with self._lock:
            leases = self._held.setdefault(held.queue, {})
            if old := leases.get(held.sequence):
                _forget(old)
            leases[held.sequence] = held

    def put_back(self, held: Held) -> None:
        """Hold again a lease that was taken and not settled; unless its message was fetched again meanwhile."""
        with self._lock:
            if self._held.setdefault(held.queue, {}).setdefault(held.sequence, held) is not held:
                _forget(held)

    def find(self, lease: JobLease) -> Held | Settled:
        """Return the lease's entry, or the refusal."""
        with self._lock:
            held = self._held.get(lease.queue, {}).get(lease.token) if isinstance(lease.token, int) else None
        if held is None:
            return Settled.NOT_IN_FLIGHT
        if self._clock.boot() >= held.expires_at:
            return Settled.EXPIRED
        return held if held.owner_token == lease.owner_token else Settled.NOT_OWNER

    def take(self, lease: JobLease) -> Held | Settled:
        """Take the lease's entry out, so that nobody else settles it; or return the refusal."""
        with self._lock:
            held = self.find(lease)
            if isinstance(held, Held):
                del self._held[held.queue][held.sequence]
            return held

    def drop(self, held: Held) -> None:
        """Remove a lost lease; the broker refuses a settlement under way."""
        with self._lock:
            leases = self._held.get(held.queue, {})
            if leases.get(held.sequence) is held:
                _forget(leases.pop(held.sequence))

    def prune(self, queue: str) -> None:
        """Forget what ran out a while ago, and tell its receiver."""
        long_ago = self._clock.boot() - EXPIRED_KEPT_S
        with self._lock:
            leases = self._held.get(queue, {})
            for held in [held for held in leases.values() if held.expires_at < long_ago]:
                _forget(leases.pop(held.sequence))

    def clear(self) -> None:
        with self._lock:
            self._held.clear()


def _forget(held: Held) -> None:
    held.delivery.receiver.forget(1)


class RequestTime(Struct, frozen=True):
    """The time of a request, by the backend's clock and by `time.monotonic()`."""

    boot: float
    wall: float
    mono: float

    def earlier(self, mono: float) -> RequestTime:
        """Return the same for what was asked for before this already; itself for what was asked for since."""
        back = max(0.0, self.mono - mono)
        return RequestTime(self.boot - back, self.wall - back, mono) if back else self


class Locks:
    """The clock that computes ends of leases, from the backend's."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._warned: dict[str, float] = {}
        # Of each queue with short locks, the least time that one had left when it was given, by our clock.
        self.noticed: dict[str, float] = {}

    def now(self) -> RequestTime:
        return RequestTime(self._clock.boot(), self._clock.wall(), time.monotonic())

    def end(self, queue: str, asked: RequestTime, locked_until: float | None) -> float:
        """Return when a lease ends on the backend's clock; `locked_until` on the broker's, None = it did not say."""
        length = self._address.lock
        left = length if locked_until is None else locked_until - asked.wall
        if left >= length - CLOCK_TOLERANCE_S:
            return asked.boot + length
        now = time.monotonic()
        self.noticed[queue] = min(left, self.noticed.get(queue, left))
        if now - self._warned.get(queue, -WARNING_PAUSE_S) >= WARNING_PAUSE_S:
            self._warned[queue] = now
            log.warning(
                "%s: queue %s locked a message for %.1f s instead of %g s: set the option lock to what the queue's lock"
                " duration is, or set this machine's clock, which is ahead of the service's",
                self._address.title,
                queue,
                left,
                length,
            )
        return asked.boot + (left if left > 0 else length)


class Fetcher:
    """Leases messages."""

    def __init__(self, namespace: Namespace, leases: HeldLeases, locks: Locks, scheme: str) -> None:
        self._namespace = namespace
        self._leases = leases
        self._locks = locks
        self._scheme = scheme

    def fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        """Return leases of messages that are there now."""
        del ttl, fetch_id  # a lock lasts as long as the queue says, and a repeated fetch is a fetch
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
        owner = (message.lock_token if isinstance(message.lock_token, uuid.UUID) else uuid.uuid4()).hex
        deliveries = record.deliveries + (message.delivery_count or 0) + 1
        sequence = message.sequence_number or 0
        self._leases.add(Held(delivery, record, queue, sequence, owner, ends, deliveries))
        history = record.attempts, record.crashes, deliveries, record.enqueued_at / MICRO, record.begun
        return JobLease(record.id, queue, record.body, sequence, owner, ends, self._scheme, *history)


class Waiter:
    """The wait for messages."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._missing: dict[str, tuple[float, ConfigurationError]] = {}

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Return one that has something to take; None after `timeout` seconds. Raises if none of them is there."""
        clients = [self._namespace.queue(queue) for queue in dict.fromkeys(queues)]
        limit, spare = max(0.0, timeout), self._namespace.address.timeout
        try:
            return self._namespace.call(self._wait_any(clients, time.monotonic() + limit), limit + spare)
        except BackendUnavailable:
            if not self._namespace.closed:
                raise
            return None

    async def _wait_any(self, clients: Sequence[QueueClient], deadline: float) -> str | None:
        now = time.monotonic()
        recent = {name: error for name, (at, error) in self._missing.items() if now - at < MISSING_KEPT_S}
        there = [client for client in clients if client.name not in recent]
        if not there and clients:
            raise recent[clients[0].name]
        stop = asyncio.Event()
        tasks = {asyncio.ensure_future(self._wait_one(each, deadline, stop)): each for each in there}
        try:
            return await self._first(tasks)
        finally:
            stop.set()
            for task, client in tasks.items():
                if not task.done():
                    client.stop_waiting()
                    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is not awaited

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
            return stop.is_set() or self._namespace.closed

        while not unwanted():
            now = time.monotonic()
            if await client.wait(min(deadline, now + RECEIVER_CHECK_S), unwanted):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0)  # a caller that wanted the receiver goes first
        return False
