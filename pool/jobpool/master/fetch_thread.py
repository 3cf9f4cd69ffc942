"""The fetch thread: fetches as many messages as the loop has room for, inspects them, and gets them what they need.

One fetch is under way at a time; the loop says how many it could take (`want`), and the thread asks again once the
loop has seen what came. With nothing to fetch it sleeps in the backend's `wait_any`, never in a busy loop. A queue that
its limits or its circuit breaker keep shut is left out, and holds up no other.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Mapping

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Leases
from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool.master.acquire import BEGIN, RENEW, Acquirer, RetryingAcquirer
from jobpool.master.events import BreakerClosed, BreakerOpened, Leased
from jobpool.master.inbox import Inbox
from jobpool.master.threads import OUTAGES, BrokerRetry, MasterThread
from jobpool.message.lease import JobLease
from jobpool.policy.breaker import Breakers, BreakerSettings
from jobpool.policy.inspection import Inspector
from jobpool.policy.limits import Limits, LocalLimits
from jobpool.policy.queue_weights import QueueWeights

MAX_WAIT_S = 0.5
"""Seconds for which the thread sleeps in the backend before it looks round."""

FETCH_ANYWAY_AFTER_S = 5.0
"""Seconds after which it fetches though nothing was hinted at: what a hint is worth is the backend's word alone."""

FIRST_GLANCE_S = 0.02
"""Seconds between two looks at the other queues, while one may open any moment by a settlement of this pool's own. Each
look that finds nothing doubles it, up to `MAX_WAIT_S`: a limited job may run for hours."""

GLANCE_TIMEOUT_S = 0.001
"""Seconds: a look, not a wait."""


WAITING = "wait"
"""Kind of call, for `BrokerRetry`."""

NO_LIMITS = Limits()
BREAKERS = BreakerSettings()


class FetchThread(MasterThread):
    """See the module. `answered_at`: CLOCK_MONOTONIC seconds of the broker's last good answer."""

    def __init__(
        self,
        backend: QueueBackend,
        queues: tuple[tuple[str, float], ...],
        ttl: float,
        inspector: Inspector,
        inbox: Inbox,
        limits: Limits = NO_LIMITS,
        breaker: BreakerSettings = BREAKERS,
    ) -> None:
        super().__init__("fetch", inbox)
        self._backend = backend
        self._clock = backend.clock
        self._chosen_ttl = backend.capabilities.leases is Leases.OURS
        self._weights = QueueWeights(queues)
        self._ttl = ttl
        self._inspector = inspector
        self._limits = LocalLimits(limits)
        self._breakers = Breakers(
            self._weights.names,
            breaker,
            opened=lambda *what: inbox.put(BreakerOpened(*what)),
            closed=lambda queue: inbox.put(BreakerClosed(queue)),
        )
        self._turn = threading.Condition()
        self._want = 0
        self._unseen = False
        self._nudged = False
        self._glance = FIRST_GLANCE_S
        self._unanswered: dict[str, str] = {}
        self._asleep = False
        self._broker_retry = BrokerRetry(inbox, self._halt, self.name)
        self._acquirer = RetryingAcquirer(
            backend, Acquirer(backend, limits), self._limits, ttl, self._broker_retry, self._halt
        )
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

    def hold(self, mine: Mapping[str, int], given_back: Iterable[str]) -> None:
        """Take in the guarded deliveries of each queue that the loop holds, and queues where starts were given back.

        Called only where queues have limits; may open what they keep shut.
        """
        if self._limits.hold(mine, given_back, self._clock.mono()):
            self._nudge()

    def answered(self, queues: Iterable[str]) -> None:
        """The broker has answered something else about these queues; called while a breaker is open."""
        self._breakers.answered(queues, self._clock.mono())
        self._nudge()

    def _nudge(self) -> None:
        """Some queue may be fetched from that could not: look again."""
        with self._turn:
            self._nudged = True
            self._turn.notify()

    def stop(self) -> None:
        """Lease nothing more. What a fetch under way still brings is given back by the loop."""
        super().stop()
        with self._turn:
            self._turn.notify()

    def is_leasing(self) -> bool:
        """Return whether anything may still come of it: nothing once it was stopped while it sleeps in the backend.

        From there it comes back within `MAX_WAIT_S` seconds, and then only ends: nobody need wait for that.
        """
        return self.is_alive() and not (self._halt.is_set() and self._asleep)

    def serve(self) -> None:
        while not self._halt.is_set():
            count = self._wait_for_room()
            if count and not self._fetch(count):
                self._wait_for_messages()

    def _wait_for_room(self) -> int:
        with self._turn:
            self._turn.wait_for(
                lambda: self._halt.is_set() or (self._want > 0 and not self._unseen), timeout=MAX_WAIT_S
            )
            return 0 if self._unseen or self._halt.is_set() else self._want

    # --- fetching -----------------------------------------------------------------------------------

    def _fetch(self, count: int) -> bool:
        """Try each queue once, in its turn, until one has something."""
        self._nudged = False
        for queue in self._order():
            if self._halt.is_set():
                return False  # each fetch from a silent broker would hold up the stop
            room = self._room(queue, count)
            got = self._fetch_from(queue, room) if room else 0
            if got:
                self._weights.took(queue, got)
                return True
            self._weights.found_nothing(queue)
        return False

    def _order(self) -> list[str]:
        """First those whose last fetch was not answered: what that one may have leased is lost in time."""
        order = self._weights.order()
        return sorted(order, key=lambda queue: queue not in self._unanswered) if self._unanswered else order

    def _room(self, queue: str, count: int) -> int:
        """How many messages to ask `queue` for; 0: its limit or its breaker is shut."""
        now = self._clock.mono()
        room = self._limits.room(queue, self._weights.share(queue, count), now)
        return room if room and self._breakers.allow(queue, now) else 0

    def _fetch_from(self, queue: str, count: int) -> int:
        """How many starts came of it, 1 at least for any message at all; 0: nothing, or no answer.

        A fetch that was not answered is made again under its id.
        """
        fetch_id = self._unanswered.get(queue) or secrets.token_hex(8)
        asked_at, boot = self._clock.mono(), self._clock.boot()
        try:
            leases = self._backend.fetch_many(queue, limit=count, ttl=self._ttl, fetch_id=fetch_id)
        except OUTAGES as error:
            self._unanswered[queue] = fetch_id
            self._breakers.failed(queue, str(error), self._clock.mono())
            self._broker_retry.failed(error, _fetch_of(queue))
            return 0
        self._unanswered.pop(queue, None)
        self.answered_at = self._clock.mono()
        self._broker_retry.over(_fetch_of(queue), WAITING, RENEW, BEGIN)
        self._breakers.succeeded(queue, self.answered_at)
        return self._deliver(queue, leases, self.answered_at - asked_at, boot) if leases else 0

    def _deliver(self, queue: str, leases: list[JobLease], took: float, asked_at: float) -> int:
        """`asked_at`: CLOCK_BOOTTIME seconds."""
        lasts = 0.0 if self._chosen_ttl else min(lease.expires_at for lease in leases) - asked_at
        in_time = self._acquirer.in_time(leases)
        found = [self._inspector.inspect(lease, self._backend.time.guess) for lease in in_time]
        admitted, started = self._acquirer.admit(
            queue, found, lambda plain: self._put(Leased(plain, took, lasts=lasts))
        )
        self._put(Leased(admitted, took, late=len(leases) - len(in_time), lasts=lasts))
        return max(1, started)

    def _put(self, leased: Leased) -> None:
        with self._turn:
            self._unseen = True
            self._want = 0
        self._inbox.put(leased)

    # --- waiting ------------------------------------------------------------------------------------

    def _wait_for_messages(self) -> None:
        """Sleep in the backend until it hints at a message; an idle pool asks for nothing else."""
        give_up = self._clock.mono() + FETCH_ANYWAY_AFTER_S
        self._glance = FIRST_GLANCE_S
        while not self._halt.is_set() and not self._hinted() and self._clock.mono() < give_up:
            pass

    def _hinted(self) -> bool:
        """Sleep for a while; whether to fetch again."""
        shut = self._shut()
        if any(queue not in shut for queue in self._unanswered):
            return True  # the pause after its failure is over
        names = [queue for queue in self._weights.names if queue not in shut]
        pause = min(MAX_WAIT_S, *shut.values()) if shut else MAX_WAIT_S
        if not names:
            return self._is_nudged(pause)
        if self._limits.may_open_early(self._clock.mono()):
            glance, self._glance = self._glance, min(MAX_WAIT_S, 2 * self._glance)
            return self._is_nudged(min(glance, pause)) or self._is_hinted(names, GLANCE_TIMEOUT_S)
        return self._is_hinted(names, pause)

    def _shut(self) -> dict[str, float]:
        """Queues that may not be fetched from, and seconds until they may."""
        now = self._clock.mono()
        found = (
            (queue, self._limits.wait(queue, now), self._breakers.wait(queue, now)) for queue in self._weights.names
        )
        return {queue: max(waits) for queue, *waits in found if any(waits)}

    def _is_nudged(self, pause: float) -> bool:
        """Sleep until a queue that was shut opens; whether one has."""
        with self._turn:
            return self._turn.wait_for(lambda: self._nudged or self._halt.is_set(), pause)

    def _is_hinted(self, names: list[str], timeout: float) -> bool:
        queue, trouble = self._sleep(names, timeout)
        if self._halt.is_set():
            return False  # the inbox and the backend may be closed by now: see `is_leasing`
        if trouble is not None:
            self._broker_retry.failed(trouble, WAITING)
            return True
        self.answered_at = self._clock.mono()
        self._broker_retry.over(WAITING)
        return queue is not None

    def _sleep(self, names: list[str], timeout: float) -> tuple[str | None, BackendUnavailable | AccessRefused | None]:
        """Return the queue that the backend hinted at, or its error. Then see whether the thread was stopped."""
        self._asleep = True
        try:
            return self._backend.wait_any(names, timeout), None
        except OUTAGES as error:
            return None, error
        finally:
            self._asleep = False


def _fetch_of(queue: str) -> str:
    """The kind of call, for `BrokerRetry`."""
    return f"fetch:{queue}"
