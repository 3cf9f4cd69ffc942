"""The renew thread: pushes every held lease's deadline forward, each third of the ttl.

It waits behind no fetch and no settlement, and no handler can starve it: it shares only the interpreter with the loop.
Each queue is asked for by itself: where one master of a cluster is silent, the leases of the others' queues live on.
"""

from __future__ import annotations

from collections.abc import Callable

from jobpool.backend import QueueBackend
from jobpool.errors import BackendUnavailable
from jobpool.master.delivery import Delivery
from jobpool.master.events import Renewed
from jobpool.master.inbox import Inbox
from jobpool.master.outage import Outage
from jobpool.master.thread import MasterThread

MOST_AT_ONCE = 500


class Renewer(MasterThread):
    """`held` is asked for a snapshot of the deliveries whose settlement was not yet answered."""

    def __init__(self, backend: QueueBackend, ttl: float, held: Callable[[], list[Delivery]], inbox: Inbox) -> None:
        super().__init__("renew", inbox)
        self._backend = backend
        self._ttl = ttl
        self._held = held
        self._outage = Outage(inbox, self._halt)

    def serve(self) -> None:
        while not self._halt.wait(self._ttl / 10):
            parts = [
                due[start : start + MOST_AT_ONCE]
                for due in self._due().values()
                for start in range(0, len(due), MOST_AT_ONCE)
            ]
            answered = [self._renew(part) for part in parts]
            if answered and all(answered):
                self._outage.over()

    def _due(self) -> dict[str, list[Delivery]]:
        """Of each queue, leases with less than two thirds of their time left; ended ones are the loop's to drop."""
        now = self._backend.clock.boot()
        due: dict[str, list[Delivery]] = {}
        for delivery in self._held():
            if now < delivery.lease.expires_at < now + 2 * self._ttl / 3:
                due.setdefault(delivery.lease.queue, []).append(delivery)
        return due

    def _renew(self, deliveries: list[Delivery]) -> bool:
        """Whether there was an answer."""
        try:
            renewed = self._backend.renew_many([d.lease for d in deliveries], self._ttl)
        except BackendUnavailable as error:
            self._outage.failed(error)  # the old deadlines stand, and the next round comes before they end
            return False
        self._inbox.put(Renewed(list(zip(deliveries, renewed, strict=True))))
        return True
