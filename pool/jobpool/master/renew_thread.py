"""The renew thread: pushes every held lease's deadline forward, each third of the time for which it holds.

That time is each lease's own. Mostly it is the `ttl` that was asked for; where the broker decides instead
(`Capabilities.chosen_ttl`), it may be a fraction of that, or many times as long. From its first third to its end it is
tried about six times.

The thread waits behind no fetch and no settlement, and no handler can starve it: it shares only the interpreter with
the loop. Each queue is asked for by itself: where one master of a cluster is silent, the leases of the others' queues
live on.

A lease whose settlement the broker has refused for as long as the lease lasts is renewed no more: it runs out, and the
message goes to whoever can settle it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from jobpool.broker.backend import QueueBackend
from jobpool.master.broker_retry import OUTAGES, BrokerRetry
from jobpool.master.delivery import Delivery
from jobpool.master.events import Renewed
from jobpool.master.inbox import Inbox
from jobpool.master.thread import MasterThread

MAX_RENEWALS_A_CALL = 500

ROUNDS_A_LEASE = 10
"""Looks at what is held, in the life of the shortest lease."""

MIN_ROUND_S = 0.02
"""Seconds between two of them at least, however short a lease is."""


class RenewThread(MasterThread):
    """`held` is asked for a snapshot of the deliveries whose settlement was not yet answered."""

    def __init__(self, backend: QueueBackend, ttl: float, held: Callable[[], list[Delivery]], inbox: Inbox) -> None:
        super().__init__("renew", inbox)
        self._backend = backend
        self._ttl = ttl
        self._held = held
        self._shortest = ttl
        self._turn = threading.Event()
        self._broker_retry = BrokerRetry(inbox, self._halt, self.name)

    def expect(self, lasts: float) -> None:
        """Among what is held from now on is a lease of so many seconds: be in time for it. Returns at once."""
        if lasts < self._shortest:
            self._turn.set()

    def stop(self) -> None:
        super().stop()
        self._turn.set()

    def serve(self) -> None:
        while not self._halt.is_set():
            self._turn.wait(max(MIN_ROUND_S, self._shortest / ROUNDS_A_LEASE))
            self._turn.clear()
            if not self._halt.is_set():
                self._renew_what_is_due()

    def _renew_what_is_due(self) -> None:
        parts = [
            due[start : start + MAX_RENEWALS_A_CALL]
            for due in self._due().values()
            for start in range(0, len(due), MAX_RENEWALS_A_CALL)
        ]
        answered = [self._renew(part) for part in parts]
        if all(answered) and (answered or not self._held()):
            self._broker_retry.over()

    def _due(self) -> dict[str, list[Delivery]]:
        """Of each queue, leases with less than two thirds of their time left; ended ones are the loop's to drop."""
        boot, mono = self._backend.clock.boot(), self._backend.clock.mono()
        shortest = self._ttl
        due: dict[str, list[Delivery]] = {}
        for delivery in self._held():
            if not delivery.lasts:
                delivery.lasts = delivery.lease.expires_at - boot + mono - delivery.leased_at
            shortest = min(shortest, delivery.lasts)
            if delivery.refused_at and mono - delivery.refused_at >= delivery.lasts:
                continue
            if boot < delivery.lease.expires_at < boot + 2 * delivery.lasts / 3:
                due.setdefault(delivery.lease.queue, []).append(delivery)
        self._shortest = shortest
        return due

    def _renew(self, deliveries: list[Delivery]) -> bool:
        """Whether there was an answer."""
        asked_at = self._backend.clock.boot()
        try:
            renewed = self._backend.renew_many([d.lease for d in deliveries], self._ttl)
        except OUTAGES as error:
            self._broker_retry.failed(
                error, holding=True
            )  # the old deadlines stand; the next round comes before they end
            return False
        for delivery, lease in zip(deliveries, renewed, strict=True):
            if lease is not None:
                delivery.lasts = lease.expires_at - asked_at
        self._inbox.put(Renewed(list(zip(deliveries, renewed, strict=True))))
        return True
