"""Holding leases longer: the locks of a queue in one request, on a channel that does nothing else but manage.

When one lock of a request is gone, the broker refuses all of them; then each is asked for by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from azure.servicebus.aio import ServiceBusReceiver

from jobpool.clock import Clock
from jobpool.message.lease import JobLease
from jobpool_backends.servicebus.internals import renew_locks
from jobpool_backends.servicebus.leases import Held, HeldLeases
from jobpool_backends.servicebus.locks import Locks
from jobpool_backends.servicebus.namespace import ATTEMPT_LIMIT_S, Namespace
from jobpool_backends.servicebus.trouble import LOST

MAX_RENEW_LOCKS = 100
"""Locks a request."""

MIN_RENEW_TIME_S = 1.0
"""Seconds to renew in, however little is left: whether it was too late, the broker knows."""


class Renewer:
    """The renewer of leases."""

    def __init__(self, namespace: Namespace, leases: HeldLeases, locks: Locks, clock: Clock) -> None:
        self._namespace = namespace
        self._leases = leases
        self._locks = locks
        self._clock = clock

    def renew(self, leases: Sequence[JobLease]) -> list[JobLease | None]:
        """Renew each lease for the time that its queue locks a message; None if it is lost.

        Raises BackendUnavailable; the old ends stand.
        """
        held = [found if isinstance(found := self._leases.find(lease), Held) else None for lease in leases]
        by_queue: dict[str, list[Held]] = {}
        for each in held:
            if each is not None:
                by_queue.setdefault(each.queue, []).append(each)
        if by_queue:
            self._namespace.call(self._renew_all(by_queue))
        return [self._renewed(lease, each) for lease, each in zip(leases, held, strict=True)]

    def _renewed(self, lease: JobLease, held: Held | None) -> JobLease | None:
        if held is None or held.lost:
            return None
        return replace(lease, expires_at=held.expires_at)

    async def _renew_all(self, by_queue: dict[str, list[Held]]) -> None:
        parts = [
            self._renew(queue, theirs[start : start + MAX_RENEW_LOCKS])
            for queue, theirs in by_queue.items()
            for start in range(0, len(theirs), MAX_RENEW_LOCKS)
        ]
        troubles = await asyncio.gather(*parts, return_exceptions=True)
        for trouble in troubles:
            if isinstance(trouble, BaseException):
                raise trouble

    async def _renew(self, queue: str, leases: Sequence[Held]) -> None:
        channel = self._namespace.queue(queue).management
        left = max(MIN_RENEW_TIME_S, min(held.expires_at for held in leases) - self._clock.boot())
        deadline = time.monotonic() + min(left, self._namespace.address.timeout)

        async def work(receiver: ServiceBusReceiver) -> None:
            asked = self._locks.now()
            tokens = [held.delivery.message.lock_token for held in leases]
            ends = await renew_locks(receiver, tokens, min(ATTEMPT_LIMIT_S, left))
            for held, locked_until in zip(leases, ends, strict=True):
                held.expires_at = self._locks.end(queue, asked, locked_until)

        try:
            await channel.run(work, deadline)
        except LOST:
            if len(leases) > 1:
                for held in leases:
                    await self._renew(queue, [held])
            else:
                leases[0].lost = True
                self._leases.drop(leases[0])
