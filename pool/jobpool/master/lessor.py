"""The lease thread: fetches as many messages as the loop has room for, and inspects them.

One fetch is under way at a time; the loop says how many it could take (`want`), and the thread asks again once the
loop has seen what came. With nothing to fetch it sleeps in the backend's `wait_any`, never in a busy loop.
"""

from __future__ import annotations

import secrets
import threading

from jobpool.backend import QueueBackend
from jobpool.errors import BackendUnavailable
from jobpool.lease import JobLease
from jobpool.master.events import Leased
from jobpool.master.inbox import Inbox
from jobpool.master.inspection import Inspector
from jobpool.master.outage import Outage
from jobpool.master.rotation import Rotation
from jobpool.master.thread import MasterThread

WAIT = 0.5
"""Seconds for which the thread sleeps in the backend before it looks round."""

LOOK_ANYWAY = 5.0
"""Seconds after which it fetches though nothing was hinted at: what a hint is worth is the backend's word alone."""


class Lessor(MasterThread):
    """See the module. `answered_at`: CLOCK_MONOTONIC seconds of the broker's last good answer."""

    def __init__(
        self,
        backend: QueueBackend,
        queues: tuple[tuple[str, float], ...],
        ttl: float,
        inspector: Inspector,
        inbox: Inbox,
    ) -> None:
        super().__init__("lease", inbox)
        self._backend = backend
        self._rotation = Rotation(queues)
        self._ttl = ttl
        self._inspector = inspector
        self._turn = threading.Condition()
        self._want = 0
        self._unseen = False
        self._outage = Outage(inbox, self._halt)
        self.answered_at = backend.clock.mono()

    def want(self, count: int) -> None:
        """How many messages the loop could take now. Cheap but for the first above 0: then the thread may be asleep."""
        if count > 0 and self._want == 0:
            with self._turn:
                self._want = count
                self._turn.notify()
        else:
            self._want = count

    def seen(self) -> None:
        """The loop has taken in what the last fetch brought. The next `want` above 0 wakes the thread."""
        self._want = 0
        self._unseen = False

    def stop(self) -> None:
        """Lease nothing more. What a fetch under way still brings is given back by the loop."""
        super().stop()
        with self._turn:
            self._turn.notify()

    def serve(self) -> None:
        while not self._halt.is_set():
            count = self._wait_for_room()
            if count and not self._fetch(count):
                self._wait_for_messages()

    def _wait_for_room(self) -> int:
        with self._turn:
            self._turn.wait_for(lambda: self._halt.is_set() or (self._want > 0 and not self._unseen), timeout=WAIT)
            return 0 if self._unseen or self._halt.is_set() else self._want

    def _fetch(self, count: int) -> bool:
        """Try each queue once, in its turn, until one has something."""
        for queue in self._rotation.order():
            got = self._fetch_from(queue, count)
            if got:
                self._rotation.took(queue, got)
                return True
        return False

    def _fetch_from(self, queue: str, count: int) -> int:
        fetch_id = secrets.token_hex(8)
        while not self._halt.is_set():
            asked_at = self._backend.clock.mono()
            try:
                leases = self._backend.fetch_many(queue, limit=count, ttl=self._ttl, fetch_id=fetch_id)
            except BackendUnavailable as error:
                self._outage.failed(error)
                continue
            self._note_answer()
            if leases:
                self._deliver(leases, self.answered_at - asked_at)
            return len(leases)
        return 0

    def _deliver(self, leases: list[JobLease], took: float) -> None:
        in_time = self._in_time(leases)
        wall = self._backend.clock.wall()
        inspected = [self._inspector.inspect(lease, wall) for lease in in_time]
        with self._turn:
            self._unseen = True
            self._want = 0
        self._inbox.put(Leased(inspected, took, late=len(leases) - len(in_time)))

    def _in_time(self, leases: list[JobLease]) -> list[JobLease]:
        """Those that may be begun. An answer that took as long as the leases last brings ended ones: no job starts on
        such a lease, unless the broker still knows it as ours and renews it."""
        now = self._backend.clock.boot()
        if all(lease.expires_at > now for lease in leases):
            return leases
        try:
            renewed = self._backend.renew_many(leases, self._ttl)
        except BackendUnavailable as error:
            self._outage.failed(error)
            renewed = list(leases)
        now = self._backend.clock.boot()
        return [lease for lease in renewed if lease is not None and lease.expires_at > now]

    def _wait_for_messages(self) -> None:
        """Sleep in the backend until it hints at a message; an idle pool asks for nothing else."""
        clock = self._backend.clock
        give_up = clock.mono() + LOOK_ANYWAY
        while not self._halt.is_set() and not self._hinted() and clock.mono() < give_up:
            pass

    def _hinted(self) -> bool:
        try:
            queue = self._backend.wait_any(self._rotation.names, WAIT)
        except BackendUnavailable as error:
            self._outage.failed(error)
            return True
        self._note_answer()
        return queue is not None

    def _note_answer(self) -> None:
        self.answered_at = self._backend.clock.mono()
        self._outage.over()
