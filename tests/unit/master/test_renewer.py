"""The renew thread: what one part of the broker does not answer ends no lease of another part."""

from __future__ import annotations

from collections.abc import Sequence

from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable
from jobpool.lease import JobLease
from jobpool.master import events as ev
from jobpool.master.delivery import Delivery
from jobpool.master.inbox import Inbox
from jobpool.master.renewer import Renewer
from jobpool_backends.memory import MemoryBackend

OTHER = "mails"


class HalfSilent(MemoryBackend):
    """As a cluster without one of its masters: no call that touches `QUEUE` is answered."""

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        if any(lease.queue == QUEUE for lease in leases):
            raise BackendUnavailable("silent")
        return super()._renew(leases, ttl)


def test_the_leases_of_other_queues_are_renewed_while_one_queue_is_silent() -> None:
    backend, inbox = HalfSilent(), Inbox()
    deliveries = []
    for nonce, queue in enumerate((QUEUE, OTHER), 1):
        backend.enqueue(a_job(queue=queue))
        lease = backend.fetch(queue, ttl=1.0)
        assert lease is not None
        deliveries.append(Delivery(lease, nonce, 0.0, "", 0.0))
    renewer = Renewer(backend, 2.0, lambda: deliveries, inbox)
    renewer.start()
    told: list[ev.Event] = []
    try:
        wait_until(lambda: told.extend(inbox.take()) or any(isinstance(event, ev.Renewed) for event in told))
    finally:
        renewer.stop()
        renewer.join(10.0)
        inbox.close()
    renewed = [
        delivery for event in told if isinstance(event, ev.Renewed) for delivery, lease in event.renewals if lease
    ]
    assert renewed[0] is deliveries[1]
    assert sum(isinstance(event, ev.BrokerSilent) for event in told) == 1
