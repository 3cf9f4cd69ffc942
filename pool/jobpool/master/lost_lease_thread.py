"""The thread that asks a broker, by whose connections leases live, which of them have broken.

It runs only where `Capabilities.lasting_leases` is False, and apart from the renew thread, which a silent broker may
keep for seconds.
"""

from __future__ import annotations

from jobpool.broker.backend import QueueBackend
from jobpool.master.events import LeasesBroke
from jobpool.master.inbox import Inbox
from jobpool.master.thread import MasterThread

LOST_LOOK_EVERY_S = 0.25
"""Seconds between two looks, which cost no I/O."""


class LostLeaseThread(MasterThread):
    """See the module. Tells the loop of leases that broke, those of all queues together."""

    def __init__(self, backend: QueueBackend, inbox: Inbox) -> None:
        super().__init__("losses", inbox)
        self._backend = backend

    def serve(self) -> None:
        while not self._halt.wait(LOST_LOOK_EVERY_S):
            leases = self._backend.lost()
            if leases:
                self._inbox.put(LeasesBroke(leases))
