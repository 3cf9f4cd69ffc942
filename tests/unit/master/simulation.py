"""A pool at work on simulated time: children that read their sockets, and a broker with a backlog. Nothing sleeps."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from stage import Stage

from jobpool.ipc.frames import Result
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.deadlines import next_due
from jobpool.master.dispatch import rest, steal_due, worth_fetching
from jobpool.master.plan import CHECK_EVERY_S
from jobpool.message.outcome import ResultKind
from jobpool.message.settlement import Release
from jobpool.policy.inspection import Inspected

HOP_S = 0.0002  # from a child to the master, and back


@dataclass(slots=True)
class Child:
    """A real child: `socket` holds the frames that it has not read. Frozen, it reads nothing more."""

    socket: deque[int] = field(default_factory=deque)
    running: int = 0
    frozen: bool = False


class Simulation(Stage):
    """`jobs`: (priority, seconds) of what waits in the broker, in its order. `begun`: (when, job), in order."""

    def __init__(self, workers: int, jobs: Sequence[tuple[int, float]], fetch: float = 0.001) -> None:
        super().__init__(workers)
        self.backlog = deque(jobs)
        self.begun: list[tuple[float, tuple[int, float]]] = []
        self.leased_at: dict[tuple[int, float], float] = {}
        self.turns = 0
        self._fetch = fetch
        self._fetching = False
        self._numbers = count()
        self._events: list[tuple[float, int, list[ev.Event] | tuple[int, int]]] = []
        self._jobs: dict[int, tuple[int, float]] = {}  # nonce → job
        self._of_lease: dict[str, tuple[int, float]] = {}
        self.boot()
        self.children = {slot.child: Child() for slot in self.pool.slots.live}
        self.started_at = self.now

    def play(self, until: float = float("inf")) -> None:
        """Play until that time, or until everything was done."""
        self._turn([])
        while self._events or self.pool.held:
            due = max(next_due(self.pool, self.now), self.pool.checked_at + CHECK_EVERY_S)
            due = max(self.now, min(due, steal_due(self.pool, self.now)))
            at = min(due, self._events[0][0] if self._events else due)
            at = max(at, min(self.now + rest(self.pool, self.now), self._next_fetch()))
            if at >= until:
                self.now = until
                return
            self.now = at
            self._turn(self._happened())

    def _next_fetch(self) -> float:
        """When a fetch comes back next, which ends a rest."""
        fetches = [at for at, _, what in self._events if isinstance(what, list) and isinstance(what[0], ev.Leased)]
        return min(fetches, default=math.inf)

    def used(self) -> float:
        """Return the share of the children's time in which jobs ran, until the last one began."""
        last = self.begun[-1][0]
        busy = sum(min(seconds, last - at) for at, (_, seconds) in self.begun)
        return busy / ((last - self.started_at) * len(self.children))

    def _turn(self, events: list[ev.Event]) -> None:
        self.turns += 1
        actions = self.tell(*events)
        while any(isinstance(action, act.TakeBack) for action in actions):
            actions = self.tell()
        want = worth_fetching(self.pool, self.now)
        if want and self.backlog and not self._fetching:
            self._fetching = True
            jobs = [self.backlog.popleft() for _ in range(min(want, len(self.backlog)))]
            leases = [self.a_lease("report", priority=priority) for priority, _ in jobs]
            self._of_lease |= {lease.id: job for lease, job in zip(leases, jobs, strict=True)}
            self._later(self._fetch, [ev.Leased([Inspected(lease, None) for lease in leases], self._fetch)])

    def _later(self, seconds: float, what: list[ev.Event] | tuple[int, int]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), what))

    def _happened(self) -> list[ev.Event]:
        """Return what has come meanwhile; children have gone on by themselves."""
        events: list[ev.Event] = []
        turn = self.now
        while self._events and self._events[0][0] <= turn:
            self.now, _, what = heapq.heappop(self._events)
            if isinstance(what, tuple):
                self._ended(*what)
            else:
                if isinstance(what[0], ev.Leased):
                    self._fetching = False
                    self.leased_at |= {self._of_lease[found.lease.id]: self.now for found in what[0].leases}
                events += what
        self.now = turn
        return events

    def _ended(self, child: int, nonce: int) -> None:
        real = self.children[child]
        if nonce and real.running == nonce and not real.frozen:
            seconds = self._jobs[nonce][1]
            result = Result(nonce, ResultKind.SUCCEEDED, self.now, seconds)
            self._later(HOP_S, [ev.ChildResults(child, [result])])
            real.running = 0
        self._read(child)

    def _read(self, child: int) -> None:
        real = self.children[child]
        if real.socket and not (real.running or real.frozen):
            real.running = real.socket.popleft()
            job = self._jobs[real.running]
            self.begun.append((self.now, job))
            self._later(job[1], (child, real.running))

    def _perform(self, action: act.Action) -> None:
        super()._perform(action)
        match action:
            case act.Dispatch(slot, deliveries):
                for delivery in deliveries:
                    self._jobs[delivery.nonce] = self._of_lease[delivery.lease.id]
                    self.children[slot.child].socket.append(delivery.nonce)
                self._later(HOP_S, (slot.child, 0))
            case act.TakeBack(slot, most):
                real = self.children[slot.child]
                if isinstance(action, act.Steal) and real.running != slot.deliveries[0].nonce:
                    apply(self.pool, ev.NotBegun(slot.child), self.now)
                    return
                nonces = [real.socket.popleft() for _ in range(min(most, len(real.socket)))]
                apply(self.pool, ev.TookBack(slot.child, frozenset(nonces), len(nonces) < most), self.now)
            case act.Settle(work):
                released = [delivery for delivery, settlement in work if isinstance(settlement, Release)]
                self.backlog.extendleft(self._of_lease[delivery.lease.id] for delivery in released)
