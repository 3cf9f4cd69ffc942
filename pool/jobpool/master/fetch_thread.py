"""The fetch thread: fetches as many messages as the loop has room for, inspects them, and gets them what they need.

One fetch is under way at a time. The loop says how many it could take (`want`). Messages that it has not seen yet count
against that; where this leaves little, the next fetch waits until it has.
With nothing to fetch the thread sleeps in the backend's `wait_any`. A queue that is shut holds up no other.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Leases
from jobpool.errors import OUTAGES
from jobpool.master.acquire import Acquirer, Guarded
from jobpool.master.dispatch import MAX_ENOUGH, MAX_FETCH
from jobpool.master.events import BreakerTurned, Leased
from jobpool.master.inbox import Inbox
from jobpool.master.threads import MasterThread
from jobpool.message.guards import Begun
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Contended, NotRun
from jobpool.policy.breaker import Breakers
from jobpool.policy.inspection import Inspected, LeaseInspector
from jobpool.policy.limits import Limits, LocalLimits
from jobpool.policy.queue_weights import QueueWeights

MAX_WAIT_S = 0.5  # seconds for which the thread sleeps in the backend before it looks round
FETCH_ANYWAY_AFTER_S = 5.0  # though nothing was hinted at: a backend may miss a hint

FIRST_PROBE_PAUSE_S = 0.02
"""Seconds between two looks at the other queues, while one may open any moment by a settlement of this pool's own. Each
look that finds nothing doubles it, up to `MAX_WAIT_S`: a limited job may run for hours."""

PROBE_TIMEOUT_S = 0.001  # seconds: a look, not a wait
FEW_QUEUES = 4  # that are tried one by one; of the next 8, 16, … the backend is asked which has something
WAITING, RENEW, BEGIN = "wait", "renew", "begin"  # kinds of calls, for `BrokerRetry`
KEY_STORE = "the broker's keys, which do not answer"  # in place of the name of what is held

NO_LIMITS = Limits()


class FetchThread(MasterThread):
    """The thread that leases messages. `answered_at`: CLOCK_MONOTONIC seconds of the broker's last good answer."""

    def __init__(
        self,
        backend: QueueBackend,
        queues: tuple[tuple[str, float], ...],
        ttl: float,
        inspector: LeaseInspector,
        inbox: Inbox,
        limits: Limits = NO_LIMITS,
    ) -> None:
        super().__init__("fetch", inbox)
        self._backend = backend
        self._clock = backend.clock
        self._chosen_ttl = backend.capabilities.leases is Leases.OURS
        self._queues = self._known = dict(queues)
        self._weights = QueueWeights(queues)
        self._ttl = ttl
        self._inspector = inspector
        self._limits = LocalLimits(limits)
        self._breakers = Breakers()
        self._turn = threading.Condition()
        self._paused: Collection[str] | None = ()
        self._want = 0
        self._brought = self._seen = 0  # messages so far; each is written by one thread, so neither needs the lock
        self._tells_all = self._chosen_ttl and not limits  # a fetch that brings less than it may has brought all
        self._may_hurry = not limits  # else it is the loop that knows what may still run
        self._woken = False
        self._probe_pause = FIRST_PROBE_PAUSE_S
        self._try_all_at = -math.inf  # CLOCK_MONOTONIC seconds
        self._unanswered: dict[str, str] = {}
        self._asleep = False
        self._let_in = False  # a fetch was answered: a refusal tells of one queue, such as a reload's new one
        self._acquirer = Acquirer(backend, limits)
        self.answered_at = backend.clock.mono()

    def want(self, count: int) -> None:
        """Note how many messages the loop could take now. Cheap but for the first above 0, which wakes the thread."""
        if count > 0 and self._want == 0:
            with self._turn:
                self._want = count
                self._turn.notify()
        else:
            self._want = count

    def seen(self, count: int) -> None:
        """Note that the loop has taken in `count` messages more. The next `want` above 0 wakes the thread."""
        self._want = 0
        self._seen += count

    def hold(self, mine: Mapping[str, int], unused_starts: Iterable[str]) -> None:
        """Take in the guarded deliveries of each queue that the loop holds, and queues where starts were given back."""
        if self._limits.hold(mine, unused_starts, self._clock.mono()):
            self._wake()

    def answered(self, queues: Iterable[str]) -> None:
        """Note that the broker has answered something else about these queues; called while a breaker is open."""
        self._breakers.answered(queues, self._clock.mono())
        self._wake()

    def serve_queues(self, queues: Mapping[str, float]) -> None:
        """Fetch from these queues, with their weights, from the next fetch on."""
        self._queues = dict(queues)
        self._wake()

    def pause(self, queues: Collection[str] | None) -> None:
        """Fetch nothing from these queues, and from all others again; None = from no queue at all."""
        self._paused = queues
        self._wake()

    def _is_paused(self, queue: str) -> bool:
        return (paused := self._paused) is None or queue in paused  # the loop may change it meanwhile

    def _wake(self) -> None:
        with self._turn:
            self._woken = True
            self._turn.notify()

    def stop(self) -> None:
        """Lease nothing more. The loop gives back the messages of a fetch that is under way."""
        super().stop()
        with self._turn:
            self._turn.notify()

    def is_leasing(self) -> bool:
        """Return whether anything may still come of it: nothing once it was stopped while it sleeps in the backend.

        It comes back from there within `MAX_WAIT_S` seconds, and then only ends, so a stop need not wait for it.
        """
        return self.is_alive() and not (self._halt.is_set() and self._asleep)

    def serve(self) -> None:
        while not self._halt.is_set():
            count = self._wait_for_room()
            self._broker_retry.answered()  # a queue that failed may be paused by now, or there may long be no room
            if (queues := self._queues) is not self._known:
                self._known = queues
                self._weights.add(queues)
            if count and not self._fetch(count):
                self._wait_for_messages()

    def _wait_for_room(self) -> int:
        with self._turn:
            self._turn.wait_for(lambda: self._halt.is_set() or self._room(), MAX_WAIT_S)
            return 0 if self._halt.is_set() else self._room()

    def _room(self) -> int:
        unseen = self._brought - self._seen
        room = self._want - unseen
        return min(room, MAX_FETCH) if not unseen or (self._may_hurry and room >= MAX_ENOUGH) else 0

    def _fetch(self, count: int) -> bool:
        """Try each queue once, in its turn, until one has something; return whether there may be more."""
        self._woken = False
        for queue in self._turns():
            if self._halt.is_set():
                return False  # each fetch from a silent broker would hold up the stop
            if self._is_paused(queue):
                continue
            now = self._clock.mono()
            room = self._limits.room(queue, self._weights.share(queue, count), now)  # 0: its limit is shut
            got = self._fetch_from(queue, room) if room and self._breakers.allow(queue, now) else 0
            if got:
                self._weights.took(queue, got)
                return got >= room or not self._tells_all or len(self._known) > 1
            self._weights.found_nothing(queue)
        return False

    def _turns(self) -> Iterator[str]:
        """Yield the queues, the one whose turn it is first. Hundreds of empty ones would cost a round trip each."""
        # First those whose last fetch was not answered: leases that it may have made run out.
        queues = sorted(self._weights.order(), key=lambda queue: queue not in self._unanswered)
        many, now = FEW_QUEUES, self._clock.mono()
        if now >= self._try_all_at or self._unanswered or not self._chosen_ttl:
            many, self._try_all_at = len(queues), now + FETCH_ANYWAY_AFTER_S
        yield from queues[:many]
        while (queues := queues[many:]) and not self._halt.is_set():
            many *= 2
            some, now = queues[:many], self._clock.mono()
            asked = [queue for queue in some if not self._shut_for(queue, now)]
            hint = self._ask(asked, 0.0) if asked else None
            for queue in some[: some.index(hint) if hint in some else None]:
                self._weights.found_nothing(queue)
            if hint is not None:
                yield from sorted(some, key=hint.__ne__)

    def _fetch_from(self, queue: str, count: int) -> int:
        """Return how many starts came of it, 1 at least for any message at all; 0: nothing, or no answer."""
        call, fetch_id = f"fetch:{queue}", self._unanswered.get(queue) or secrets.token_hex(8)
        asked_at, asked_at_boot = self._clock.mono(), self._clock.boot()
        try:
            leases = self._backend.fetch_many(queue, limit=count, ttl=self._ttl, fetch_id=fetch_id)
        except OUTAGES as error:
            self._unanswered[queue] = fetch_id  # under which it is made again
            self._note_failure(queue)
            self._broker_retry.failed(error, call, holding=self._let_in)
            return 0
        self._unanswered.pop(queue, None)
        self._let_in = True
        self.answered_at = self._clock.mono()
        self._broker_retry.answered(call, WAITING, RENEW)
        if leases:
            return self._deliver(queue, leases, self.answered_at - asked_at, asked_at_boot)
        self._note_success(queue)
        return 0

    def _note_failure(self, queue: str, *, of_keys: bool = False) -> None:
        if self._breakers.failed(queue, self._clock.mono(), of_keys=of_keys):
            self._inbox.put(BreakerTurned(queue, True))

    def _note_success(self, queue: str) -> None:
        if self._breakers.succeeded(queue, self.answered_at):
            self._inbox.put(BreakerTurned(queue, False))

    def _deliver(self, queue: str, leases: list[JobLease], took: float, asked_at_boot: float) -> int:
        lasts = 0.0 if self._chosen_ttl else min(lease.expires_at for lease in leases) - asked_at_boot
        in_time = self._in_time(leases)
        inspect, now = self._inspector.inspect, self._backend.time.guess
        found = [Inspected(lease, inspect(lease, now)) for lease in in_time]
        return self._admit(queue, Leased(found, took, late=len(leases) - len(in_time), lasts=lasts))

    def _in_time(self, leases: list[JobLease]) -> list[JobLease]:
        """Return those that may be begun. Not one that came so late that it has ended, unless the broker renews it."""
        now = self._clock.boot()
        if all(lease.expires_at > now for lease in leases):
            return leases
        try:
            renewed = self._backend.renew_many(leases, self._ttl)
        except OUTAGES as error:
            self._broker_retry.failed(error, RENEW, holding=True)
            renewed = list(leases)
        now = self._clock.boot()
        return [lease for lease in renewed if lease is not None and lease.expires_at > now]

    def _admit(self, queue: str, leased: Leased) -> int:
        """Get those that need something what they need, or their outcomes; hand all to the loop.

        Returns how many were not refused. If the broker is silent, those that need nothing do not wait for the others.
        """
        asked, total = self._acquirer.asks(queue, leased.leases), len(leased.leases)
        answers = self._begin(queue, asked) if asked else []
        if answers is None:
            needy = {id(inspected) for inspected, _ in asked}
            if plain := [inspected for inspected in leased.leases if id(inspected) not in needy]:
                self._put(Leased(plain, leased.took, lasts=leased.lasts))
            leased.leases, answers = [inspected for inspected, _ in asked], self._begin_again(queue, asked)
        if answers is not None:
            if asked:
                self._conclude(queue, asked, answers)
            self._note_success(queue)
        self._put(leased)
        return max(1, total - sum(inspected.outcome is not None for inspected, _ in asked))

    def _begin(self, queue: str, asked: Guarded) -> list[Begun] | None:
        try:
            answers = self._acquirer.begin([(inspected.lease, guards) for inspected, guards in asked])
        except OUTAGES as error:
            self._note_failure(queue, of_keys=True)
            self._broker_retry.failed(error, BEGIN, holding=True)
            return None
        self._broker_retry.answered(BEGIN)
        return answers

    def _begin_again(self, queue: str, asked: Guarded) -> list[Begun] | None:
        """Ask until there is an answer, which does no harm. None: all are given back.

        That is at a stop, and when the queue's breaker has opened, for other queues wait meanwhile. Also when half of
        a lease is over, for nobody renews these.
        """
        clock, halted = self._clock, self._halt.is_set
        now = clock.boot()
        give_up = now + (min(inspected.lease.expires_at for inspected, _ in asked) - now) / 2
        while not (halted() or clock.boot() >= give_up or self._breakers.wait(queue, clock.mono())):
            if (answers := self._begin(queue, asked)) is not None:
                return answers
        for inspected, guards in asked:  # it may have been granted: then the lease gives it back
            lease = inspected.lease
            inspected.lease = lease.guarded(guards)
            inspected.outcome = NotRun() if halted() else Contended(self._acquirer.delay(lease), KEY_STORE)
        return None

    def _conclude(self, queue: str, asked: Guarded, answers: list[Begun]) -> None:
        """Note every answer, and for the queue's local limit how many may start."""
        refused = None
        for (inspected, guards), begun in zip(asked, answers, strict=True):
            if not self._acquirer.conclude(inspected, guards, begun):
                refused = refused or begun
        granted = sum(inspected.outcome is None for inspected, _ in asked)
        self._limits.begun(queue, granted, refused, self._clock.mono())

    def _put(self, leased: Leased) -> None:
        self._brought += leased.brought
        self._inbox.put(leased)

    def _wait_for_messages(self) -> None:
        """Sleep in the backend until it hints at a message; an idle pool asks for nothing else."""
        give_up = self._clock.mono() + FETCH_ANYWAY_AFTER_S
        self._probe_pause = FIRST_PROBE_PAUSE_S
        while self._queues is self._known and not self._halt.is_set() and self._clock.mono() < give_up:
            if self._hinted():
                break

    def _shut_for(self, queue: str, now: float) -> float:
        """Return seconds for which nothing may be fetched from this queue."""
        if self._is_paused(queue):
            return MAX_WAIT_S
        return max(self._limits.wait(queue, now), self._breakers.wait(queue, now))

    def _hinted(self) -> bool:
        now = self._clock.mono()
        waits = {queue: self._shut_for(queue, now) for queue in self._known}
        if any(not waits.get(queue) for queue in self._unanswered):
            return True  # the pause after its failure is over
        names = [queue for queue, wait in waits.items() if not wait]
        pause = min([MAX_WAIT_S, *filter(None, waits.values())])
        if not names:
            return self._sleep_until_woken(pause)
        if self._limits.may_open_early(now):
            probe_pause, self._probe_pause = self._probe_pause, min(MAX_WAIT_S, 2 * self._probe_pause)
            return self._sleep_until_woken(min(probe_pause, pause)) or self._ask(names, PROBE_TIMEOUT_S) is not None
        return self._ask(names, pause) is not None

    def _sleep_until_woken(self, pause: float) -> bool:
        """Sleep until a queue that was shut opens; return whether one has."""
        with self._turn:
            return self._turn.wait_for(lambda: self._woken or self._halt.is_set(), pause)

    def _ask(self, names: list[str], timeout: float) -> str | None:
        """Ask the backend, `timeout` seconds at most; return the queue it hinted at, or the first if it failed."""
        queue, trouble = None, None
        self._asleep = True
        try:
            queue = self._backend.wait_any(names, timeout)
        except OUTAGES as error:
            trouble = error
        self._asleep = False
        if self._halt.is_set():
            return None  # the inbox and the backend may be closed by now: see `is_leasing`
        if trouble is not None:
            self._broker_retry.failed(trouble, WAITING, holding=self._let_in)
            return names[0]
        self.answered_at = self._clock.mono()
        self._broker_retry.answered(WAITING)
        return queue
