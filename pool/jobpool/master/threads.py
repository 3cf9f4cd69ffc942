"""The master's threads: their base, how each waits out a broker, and the small ones.

These are for renewals, for what people ask (control), for lost leases and for samples.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import faulty_package
from jobpool.errors import OUTAGES, AccessRefused, BackendUnavailable, JobpoolError
from jobpool.master import events as ev
from jobpool.master.slots import Delivery

if TYPE_CHECKING:
    from psutil import Process


FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0  # with a call that gives up after 3 s, work goes on less than 5 s after the broker is back
FORGET_FAILURE_S = 90.0  # without a call of a kind that failed: a breaker's longest cooldown, and a call
MAX_REFUSED_PAUSE_S = 3.0  # after a refused password: servers count those, and lock accounts

MAX_RENEWALS_A_CALL = 500
ROUNDS_A_LEASE = 10  # looks at what is held, in the life of the shortest lease
MIN_ROUND_S = 0.02  # seconds between two of them at least, however short a lease is
CONTROL_EVERY_S = 0.5  # seconds between two reads of what people ask
IDLE_CONTROL_EVERY_S = 0.9  # the same while the pool holds nothing that could be cancelled
LOST_LOOK_EVERY_S = 0.25  # seconds between two looks, which cost no I/O
SAMPLE_EVERY_S = 1.0  # seconds between two samples: a growing job may be above its limit for as long, unseen
IDLE_SAMPLE_ROUNDS = 5  # samples between two looks at idle children

log = logging.getLogger("jobpool.pool")


class Receiver(Protocol):
    """A receiver of a thread's events: the loop's inbox, or `QueueWorker`'s keeper of one lease."""

    def put(self, event: ev.Event) -> None: ...


class MasterThread(threading.Thread, ABC):
    """Runs `serve`; an error that leaves it, a fault of ours or the broker's last word, ends the pool in good order."""

    def __init__(self, name: str, inbox: Receiver) -> None:
        super().__init__(name=name, daemon=True)
        self._inbox = inbox
        self._halt = threading.Event()
        self._broker_retry = BrokerRetry(inbox, self._halt, name)

    @abstractmethod
    def serve(self) -> None:
        """Work until `stop` was called."""

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._halt.set()

    def run(self) -> None:
        try:
            self.serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported and the pool stops
            said = str(error) if isinstance(error, JobpoolError) else ""
            self._inbox.put(ev.ThreadDied(self.name, traceback.format_exc(), said, faulty_package(error)))


class BrokerRetry:
    """Back-off of one thread from a broker's outage, which it tells the loop once each way.

    It begins at 50 ms and doubles, for each kind of call by itself; a good answer to that kind resets it. The outage
    lasts until every kind of call that has failed was answered, or was not made for `FORGET_FAILURE_S`. So a call that
    always fails and one that always succeeds do not take turns in the log. `stop`: set when the thread is to end.
    """

    def __init__(self, inbox: Receiver, stop: threading.Event, thread: str) -> None:
        self._inbox = inbox
        self._stop = stop
        self._thread = thread
        self._pauses: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._reported: type[Exception] | None = None
        self._let_in: set[str] = set()

    def failed(self, error: BackendUnavailable | AccessRefused, call: str = "", *, holding: bool = False) -> None:
        """Note the failure of this kind of call, and wait before the next try; a stop cuts the wait short.

        Raises `error` if it is a refusal, and no such call was ever answered: the settings are wrong. Not so if leases
        are held or were fetched (`holding`), so that the broker has let this pool in before.
        """
        refused = isinstance(error, AccessRefused)
        if refused and not holding and call not in self._let_in:
            raise error
        self.report(error, call)
        longest = MAX_REFUSED_PAUSE_S if refused else MAX_PAUSE_S
        pause = self._pauses[call] = min(longest, 2 * self._pauses[call] or FIRST_PAUSE_S)
        if self._stop.wait(pause):
            time.sleep(FIRST_PAUSE_S)  # calls that are still tried at a stop keep a pause too

    def report(self, error: BackendUnavailable | AccessRefused, call: str) -> None:
        if type(error) is not self._reported:
            self._reported = type(error)
            self._inbox.put(ev.BrokerSilent(str(error), self._thread, type(error)))
        self._pauses.setdefault(call, 0.0)
        self._failed_at[call] = time.monotonic()

    def answered(self, *calls: str) -> None:
        """Note that the broker has answered these kinds of calls, if any."""
        self._let_in.update(calls)
        if self._reported is None:
            return
        old = time.monotonic() - FORGET_FAILURE_S
        for call in (*calls, *(call for call, at in self._failed_at.items() if at < old)):
            self._pauses.pop(call, None)
            self._failed_at.pop(call, None)
        if not self._pauses:
            self._reported = None
            self._inbox.put(ev.BrokerAnswered(self._thread))


class RenewThread(MasterThread):
    """The thread that pushes every held lease's deadline forward, each third of the time for which it holds.

    That time is each lease's own, mostly the `ttl` that was asked for. Where the broker decides (`Leases.BROKER`), it
    may be a fraction of that, or many times as long. From its first third to its end it is tried about six times.

    The thread waits for no fetch and no settlement, and no handler can starve it. Each queue is a call of its own, so
    a silent master of a cluster costs the other queues nothing. If the broker refuses a settlement for as long as its
    lease lasts, that lease is renewed no more. A pool that can settle it then gets the message.

    `held` is asked for a snapshot of the deliveries whose settlement was not yet answered.
    """

    def __init__(self, backend: QueueBackend, ttl: float, held: Callable[[], list[Delivery]], inbox: Receiver) -> None:
        super().__init__("renew", inbox)
        self._backend = backend
        self._ttl = ttl
        self._held = held
        self._shortest = ttl
        self._turn = threading.Event()

    def expect(self, lasts: float) -> None:
        """Be in time for a held lease that lasts this many seconds. Returns at once."""
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
        answered = [
            self._renew(due[start : start + MAX_RENEWALS_A_CALL])
            for due in self._due().values()
            for start in range(0, len(due), MAX_RENEWALS_A_CALL)
        ]
        boot = self._backend.clock.boot()
        if all(answered) and (answered or all(boot < delivery.lease.expires_at for delivery in self._held())):
            self._broker_retry.answered("")

    def _due(self) -> dict[str, list[Delivery]]:
        """Return, by queue, leases with less than two thirds of their time left; ended ones are the loop's to drop."""
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
        """Renew them; return whether there was an answer."""
        asked_at = self._backend.clock.boot()
        try:
            renewed = self._backend.renew_many([d.lease for d in deliveries], self._ttl)
        except OUTAGES as error:
            self._broker_retry.failed(error, holding=True)  # the old deadlines stand until the next round
            return False
        for delivery, lease in zip(deliveries, renewed, strict=True):
            if lease is not None:
                delivery.lasts = lease.expires_at - asked_at
        self._inbox.put(ev.Renewed(list(zip(deliveries, renewed, strict=True))))
        return True


class ControlThread(MasterThread):
    """The thread that reads twice a second what people ask of queues and pools, and tells the loop when that changes.

    It also keeps the pool's record, which `describe` returns, and removes it at the end. The record is written again
    when the pool first has as many ready children as are `wanted`. It runs apart from the others,
    which a silent broker may keep for seconds, as theirs may keep it.
    """

    def __init__(
        self,
        backend: QueueBackend,
        describe: Callable[[], control.PoolRecord],
        wanted: Callable[[], int],
        inbox: Receiver,
    ) -> None:
        super().__init__("control", inbox)
        self._backend = backend
        self._describe = describe
        self._wanted = wanted
        self._known: control.PoolRequests | None = None
        self._over: deque[str] = deque()
        self._told: list[object] = []
        self._tell_at = 0.0
        self._is_up = False

    def serve(self) -> None:
        while not self._halt.is_set():
            try:
                pause = self._look()
            except OUTAGES as error:
                self._broker_retry.failed(error)
                continue
            self._broker_retry.answered("")
            self._halt.wait(pause)
        with contextlib.suppress(*OUTAGES):
            control.unmark(self._backend, list(self._over))
            control.forget(self._backend, self._describe().id)

    def cancelled(self, idents: list[str]) -> None:
        """Remove the marks of these messages: they are settled. Returns at once."""
        self._over.extend(idents)

    def _look(self) -> float:
        """Read and write what there is; return the seconds until the next look."""
        pool = self._describe()  # first: then the broker's clock is known before anything is fetched
        asked = control.read(self._backend)
        if asked != self._known:
            self._known = asked
            self._inbox.put(ev.ControlRead(asked))
        # Writes come last: a broker that refuses them is read all the same.
        if over := list(self._over):
            control.unmark(self._backend, over)
            for _ in over:
                self._over.popleft()
        self._is_up |= pool.children >= self._wanted()
        shown = [self._is_up, pool.state, *pool.queues]
        if shown != self._told or time.monotonic() >= self._tell_at:
            control.publish_pool(self._backend, pool)
            self._told, self._tell_at = shown, time.monotonic() + control.TELL_EVERY_S
        return CONTROL_EVERY_S if pool.lease_margin is not None else IDLE_CONTROL_EVERY_S


class LostLeaseThread(MasterThread):
    """The thread that asks a broker, by whose connections leases live, which of them have broken, and tells the loop.

    It runs only for `Leases.CONNECTION`, and apart from the renew thread, which a silent broker may keep for seconds.
    """

    def __init__(self, backend: QueueBackend, inbox: Receiver) -> None:
        super().__init__("losses", inbox)
        self._backend = backend

    def serve(self) -> None:
        while not self._halt.wait(LOST_LOOK_EVERY_S):
            if leases := self._backend.lost():
                self._inbox.put(ev.LeasesBroke(leases))


class SampleThread(MasterThread):
    """The thread that measures resident memory and CPU share of each child once a second.

    It holds no lease, so an error of its own, such as a process without a free descriptor, is told and ends nothing.
    `children` is asked for (child, pid, busy) of each living child.
    """

    def __init__(self, children: Callable[[], list[tuple[int, int, bool]]], inbox: Receiver) -> None:
        super().__init__("sample", inbox)
        self._children = children
        self._known: dict[int, Process] = {}
        self._round = 0
        self._failing = False

    def serve(self) -> None:
        while not self._halt.wait(SAMPLE_EVERY_S):
            try:
                self._sample()
            except Exception as error:  # noqa: BLE001 - a pool whose children are not measured still runs jobs
                if not self._failing:
                    text = "children cannot be measured, and memory_limit is not kept to; trying again each second"
                    log.error(text, extra={"error": repr(error)})
                self._failing = True

    def _sample(self) -> None:
        children = self._children()
        living = {child for child, _, _ in children}
        self._known = {child: known for child, known in self._known.items() if child in living}
        everyone = self._round % IDLE_SAMPLE_ROUNDS == 0
        self._round += 1
        at = time.monotonic()
        looks = (self._look(child, pid) for child, pid, busy in children if pid and (busy or everyone))
        if samples := [sample for sample in looks if sample]:
            self._failing = False
            self._inbox.put(ev.Sampled(samples, at))

    def _look(self, child: int, pid: int) -> tuple[int, int, float, bool] | None:
        import psutil  # not at the start, which it would hold up

        try:
            process = self._known.get(child) or self._known.setdefault(child, psutil.Process(pid))
            with process.oneshot():
                is_stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
                return child, process.memory_info().rss, process.cpu_percent() / 100, is_stopped
        except psutil.Error:
            return None  # it has just died: its death is on its way
