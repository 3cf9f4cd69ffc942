"""The state of a pool. Events change it in apply.py, decisions are made from it in plan.py; it does no I/O."""

from __future__ import annotations

import math
import secrets
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from itertools import count
from typing import Any, NamedTuple

from jobpool.broker.control import CancelMark, Pause
from jobpool.broker.values import Capabilities, QueueStats
from jobpool.errors import JobpoolError
from jobpool.ipc.frames import Ask, HandlerInfo, Reply
from jobpool.ipc.requests import Request
from jobpool.master.slots import Delivery, Slots, SlotState, nonces
from jobpool.message.envelope import WIRE_VERSION, JobEnvelope
from jobpool.message.outcome import Counts, EndReason, NotRun, Outcome
from jobpool.message.setting_types import usable_cpus
from jobpool.message.settlement import Release, Settled, Settlement
from jobpool.message.units import format_duration
from jobpool.policy.classify import LEASE_LOST
from jobpool.policy.lookahead import LookAhead
from jobpool.policy.retry import BackOff, remember
from jobpool.settings import Settings
from jobpool.telemetry.metrics.memory import OTHER, MemoryMetrics

FIRST_BOOT_PAUSE_S = 0.1
MAX_BOOT_PAUSE_S = 30.0  # between two tries of what does not come up; doubles from the first to the last
MAX_RUN_S = 1e9  # seconds; a longer duration that a child tells is not believed

ANSWER_GRACE_S = 0.5
"""Seconds past the stop's grace for which the last settlements may wait for the broker; the reaper has them later."""

BROKEN_GRACE_S = 0.5  # seconds between the close of a child's channel and its kill: mostly it is dying already

FIRST_SCHEDULER_PAUSE_S = 1.0
MAX_SCHEDULER_PAUSE_S = 30.0
"""Between the end of one that ended by itself and the next; doubles from the first to the last."""

STEADY_AFTER_S = 60.0  # one that ends by itself after this time counts as the first to do so
TROUBLE_AFTER_ENDS = 3  # from this many ends in a row on, the pool says so (health)


class Stopping(Enum):
    NO = "no"
    DRAIN = "drain"
    KILL = "kill"


@dataclass(slots=True)
class Server:
    """One fork server, as the pool knows it. A generation is one import of the app."""

    generation: int
    started_at: float
    is_reload: bool = False
    loaded: bool = False
    preloaded: bool = True  # its children are forks of the imported app; else each imports it
    ending: bool = False
    refused: bool = False  # its app cannot run on this pool's backend: it is to be ended
    told_slow: bool = False  # it was logged that its import takes long
    heard_at: float = 0.0
    """When it last said something, or the master came back from a time in which it could not have heard it."""

    @property
    def is_young(self) -> bool:
        return not (self.loaded or self.ending or self.refused)


GIVEN_BACK = {
    EndReason.STOP: "a job is killed by the stop; it goes back to its queue",
    EndReason.SERVER: "a job died with its fork server; it goes back to its queue",
    EndReason.RETIRE: "a job died in a child that was killed for the job before it; it goes back to its queue",
}
"""Lines about running jobs whose attempt left no other trace."""


class Note(NamedTuple):
    """A thing to say to a person, which the loop logs: by a logger's method, an event in words, and fields."""

    level: str
    event: str
    fields: dict[str, Any]


class Line(NamedTuple):
    """A line that a handler or the app printed or logged."""

    level: int  # of `logging`
    text: str
    fields: dict[str, Any]  # whose it is


def slot_count(workers: int) -> int:
    """Slots to lay out for `workers` children: room for TTIN, and for a reload's spare."""
    return max(2 * workers, workers + 16) + 1


@dataclass(slots=True)
class Scheduler:
    """One scheduler's process, as the pool knows it. Times are CLOCK_MONOTONIC seconds."""

    pid: int
    generation: int  # it has imported the app of this one or a later one
    started_at: float
    ready: bool = False
    asked_at: float = 0.0  # to end; 0 = it was not
    killed: bool = False
    error: str = ""  # why it is ended, if that is its own fault
    heard_at: float = 0.0  # it turned then, or the master had stood still and could not hear it
    runs: str = ""  # the schedule whose job runs in its process, if one does
    silence: str = ""  # what is said of it while it does not turn

    def is_steady(self, now: float) -> bool:
        return self.ready and now - self.started_at >= STEADY_AFTER_S


class Schedulers(BackOff):
    """The pool's knowledge of its schedulers, and the back-off of those that end by themselves."""

    def __init__(self) -> None:
        super().__init__(FIRST_SCHEDULER_PAUSE_S, MAX_SCHEDULER_PAUSE_S)
        self.running: dict[int, Scheduler] = {}  # by pid, until their end is collected
        self.was_ready = False  # one was, at any time
        self.tried = 0  # the last generation of which one was started, or could not be
        self.refused = ""  # why the schedules of that generation cannot work, if they cannot

    @property
    def serving(self) -> list[Scheduler]:
        """Return the schedulers that were not asked to end, the oldest first."""
        return [one for one in self.running.values() if not one.asked_at]

    @property
    def problem(self) -> str:
        if self.refused:
            which = "the new schedules are refused, the old ones go on" if self.serving else "there is no scheduler"
            return f"{which}: {self.refused}"
        if self.failures < TROUBLE_AFTER_ENDS:
            return next((one.silence for one in self.serving if one.silence), "")
        return "the scheduler does not stay up" + (f": {self.last_error}" if self.last_error else "")


@dataclass(slots=True)
class Pool:
    """Everything the master knows. Only the loop's thread touches it. Times are CLOCK_MONOTONIC seconds."""

    settings: Settings
    now: float
    can: Capabilities = field(default_factory=Capabilities)  # the capabilities of its backend
    queues: dict[str, float] = field(init=False)
    """Queue that the pool serves → its weight; {} until the app has loaded, if the settings name none."""
    told_unserved: set[str] = field(default_factory=set)  # warnings about what nothing serves that were logged
    target: int = 0
    cpus: int = field(default_factory=usable_cpus)
    slots: Slots = field(init=False)
    lookahead: LookAhead = field(init=False)
    ready: deque[Delivery] = field(default_factory=deque)
    held: dict[int, Delivery] = field(default_factory=dict)
    outcomes: list[tuple[Delivery, Outcome]] = field(default_factory=list)
    asks: list[tuple[int, Ask]] = field(default_factory=list)
    replies: list[tuple[int, Reply]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)  # of handlers and of the app, for the log
    lines_left_out: int = 0
    in_stack: bool = False  # the last line that the app printed at its import belongs to a stack
    told: set[str] = field(default_factory=set)  # handlers of which the first success was logged
    told_replaced: set[tuple[str, str]] = field(default_factory=set)  # by handler, why children leave that was logged
    tells_each: bool = False  # each job that ends is logged
    limited: bool = False  # a queue has a limit of its own
    handlers: dict[str, HandlerInfo] = field(default_factory=dict)
    servers: dict[int, Server] = field(default_factory=dict)
    generation: int = 0  # the generation new children are forked from; 0 = none has loaded yet
    boot: BackOff = field(default_factory=lambda: BackOff(FIRST_BOOT_PAUSE_S, MAX_BOOT_PAUSE_S))
    """Of children and fork servers that do not come up."""
    schedulers: Schedulers = field(default_factory=Schedulers)  # of the schedulers beside the pool, where there are any
    metrics: MemoryMetrics = field(default_factory=MemoryMetrics)
    """The one place where events are counted: scoreboard, log, metrics and rollups read it."""
    stats: dict[str, QueueStats] = field(default_factory=dict)
    stopping: Stopping = Stopping.NO
    stop_by: float = 0.0
    stop_signal: int | None = None  # the last of those that ask for a stop
    stop_signal_at: float = 0.0
    reload_asked: bool = False
    reloaded_at: float = -math.inf  # when the last reload began
    reload_error: str = ""
    """Why the last reload failed; "" = it did not. Until the next good one."""
    stacks_asked: bool = False
    requests: list[tuple[Request, socket.socket]] = field(default_factory=list)
    """Of people on this machine, and where they are answered."""
    fatal: str = ""
    fatal_stack: str = ""
    outages: dict[str, tuple[type[JobpoolError], str]] = field(default_factory=dict)
    """Thread → why its calls to the broker fail for now."""
    outages_told: set[type[JobpoolError]] = field(default_factory=set)
    """Kinds of errors of this outage that were logged; they are again at `remind_at`."""
    remind_at: float = 0.0
    outage_at: float = 0.0  # when the latest outage of a thread ended
    refused_since: float = 0.0  # when the broker began to refuse this pool; 0.0 = it does not
    open_breakers: set[str] = field(default_factory=set)
    """Queues from which nothing is fetched for now, because fetches from them have failed."""
    paused: dict[str, Pause] = field(default_factory=dict)
    """Queues from which nothing is fetched because a person has asked for it."""
    ident: str = field(default_factory=lambda: secrets.token_hex(4))  # its id among the pools of its broker
    drained: bool = False  # a person has asked this pool to fetch nothing
    cancels: dict[str, CancelMark] = field(default_factory=dict)  # messages that a person has cancelled, by id
    cancels_over: list[str] = field(default_factory=list)  # ids of settled ones: the loop has their marks removed
    control_came: bool = False  # the requests of people have changed: the loop tells the fetch thread
    answered_queues: set[str] = field(default_factory=set)
    """Queues of which something was answered while a breaker was open; the loop tells the fetch thread."""
    closed_to_hooks: frozenset[str] | None = None
    """Queues whose `queue_handlers` keep the app's `on_death` hooks out; None = the app has none."""
    app_came: bool = False  # an app has loaded: the loop tells its threads of hooks and queues, and they look round
    fetch_came: int = 0  # messages of fetches that were taken in; the loop tells the fetch thread
    shortest_lease: float = 0.0  # seconds for which the shortest of its leases lasts; 0 = as long as was asked for
    has_booted: bool = False  # a child was ready, at any time
    child_came: bool = False  # a child has become ready; the loop publishes that soon
    unused_starts: set[str] = field(default_factory=set)
    """Limited queues with starts that were granted and not used; the loop tells the fetch thread."""
    leased_total: int = 0
    leased_at_count: int = 0  # the same when messages were last counted
    counted_at: float = 0.0  # when that was
    ended_total: int = 0
    checked_at: float = 0.0
    wall: Callable[[], float] = time.time  # Unix time by the broker's last answer: `BrokerTime.last`
    wall_ahead: float = 0.0  # that less CLOCK_MONOTONIC: seconds, at the last answer to a settlement
    boot_ahead: float = 0.0  # CLOCK_BOOTTIME, by which leases end, less CLOCK_MONOTONIC: seconds, at the last turn
    changed: bool = True  # something happened that may call for another child or fork server
    nonces: Iterator[int] = field(default_factory=nonces)
    child_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    generations: Iterator[int] = field(default_factory=lambda: count(1))
    """Never used before: children of an old fork server must not be taken for the new one's."""
    record: Callable[[list[tuple[Delivery, Settlement, Settled]]], None] | None = None  # notes answers for the history
    dead_peaks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=1000))
    """Of the children that ended last: when that was, and the peak of resident memory."""
    never_started: dict[str, int] = field(default_factory=dict)
    unsettled: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Id → handler, name and attempts of jobs whose leases ended here without a verdict: a reaper knows only the id."""
    orphaned: dict[str, int] = field(default_factory=dict)
    """Message → how many of its attempts in a row have died with their fork server."""
    unknown_since: dict[str, float] = field(default_factory=dict)
    broken: dict[str, float] = field(default_factory=dict)
    """Owner tokens of leases that broke, and when that was told: the fetch that brings them may still be on its way."""
    told_short: bool = False  # it was said that leases are much shorter than was asked for

    def __post_init__(self) -> None:
        self.target = self.settings.workers
        self.queues = dict(self.settings.queues)
        self.tells_each = self.settings.log_level == "debug"
        self.limited = bool(self.settings.concurrency_limits or self.settings.rate_limits)
        self.slots = Slots(slot_count(self.settings.workers))
        self.lookahead = LookAhead(self.now)

    @property
    def is_stopping(self) -> bool:
        return self.stopping is not Stopping.NO

    @property
    def finished(self) -> bool:
        """All processes are collected, and every settlement was answered, or the broker's time for it is over."""
        over = self.now >= self.stop_by + ANSWER_GRACE_S
        return self.is_stopping and not self.slots.live and not self.schedulers.running and (not self.held or over)

    def server(self) -> Server | None:
        return self.servers.get(self.generation)

    def server_failed(self, generation: int, error: str, now: float) -> str | None:
        """Keep why a fork server does not serve; return when another is tried. None: none is, the present code serves.

        Then it was a reload that failed, if its code is newer, and no failure of the children that run.
        """
        if self.server() is None:
            return f"{self.boot.failed(error, now):.1f}s"
        if generation > self.generation:
            self.reload_error = error
        return None

    @property
    def counters(self) -> Counts:
        """Return the counts since the start. Costs about a microsecond for each handler on each queue."""
        return self.metrics.totals()

    def places(self) -> dict[str, int]:
        """Count the deliveries with places of each queue that are held; asked only where queues have limits."""
        return Counter(d.lease.queue for d in self.held.values() if d.lease.guards and d.lease.guards.holds)

    def unknown_for(self, ident: str) -> float:
        """Return the seconds since this pool first saw the message with a handler that it does not know."""
        return self.now - remember(self.unknown_since, ident, self.unknown_since.get(ident, self.now))

    def lose(
        self,
        delivery: Delivery,
        counters: tuple[str, ...] = LEASE_LOST,
        *,
        why: str | None = None,
        quietly: bool = False,
    ) -> None:
        """Leave it to its lease, and settle nothing for it. `quietly`: the caller logs that."""
        if delivery.lost or delivery.nonce not in self.held:
            return
        delivery.lost = True
        self.ended(delivery, counters)
        if not quietly:
            self.note("warning", "a lease was lost", id=delivery.lease.id, queue=delivery.lease.queue, why=why)
        if delivery.slot < 0 and delivery in self.ready:
            self.ready.remove(delivery)

    def ended(self, delivery: Delivery, counters: tuple[str, ...], settlement: Settlement | None = None) -> None:
        """Let go of a delivery and count its end: nothing else takes one out of `held`.

        `settlement`: the answered one; None: its lease has ended unsettled, or will. Neither a released delivery nor
        one that no child had counts towards `max_total`.
        """
        self.held.pop(delivery.nonce, None)
        lease, run, wait = delivery.lease, None, None
        if delivery.slot < 0 if settlement is None else type(settlement) is Release:
            self.leased_total -= 1
        else:
            self.ended_total += 1
        if settlement is None:
            self.remember_unsettled(delivery)
        elif delivery.ran is not None:
            # Of times that cannot be, 0 is counted: user code shares the child that tells them, and clocks differ.
            run = delivery.ran if 0.0 <= delivery.ran < MAX_RUN_S else 0.0
            if not (lease.attempts or lease.crashes):
                schedule = lease.envelope.schedule
                due = _due_at(schedule, lease.enqueued_at) if schedule else lease.enqueued_at
                wait = delivery.began + self.wall_ahead - due
                wait = wait if 0.0 <= wait < MAX_RUN_S else 0.0
        # Handlers that the app does not know share a label, for anybody can enqueue any name.
        label = delivery.handler if delivery.handler in self.handlers or not delivery.handler else OTHER
        self.metrics.ended(lease.queue, label, counters, run, wait)

    def remember_unsettled(self, delivery: Delivery) -> None:
        """Keep what the log should say of this job if its next crash is one too many."""
        lease = delivery.lease
        about: dict[str, Any] = {"handler": delivery.handler, "attempts": lease.attempts}
        if delivery.handler:  # else it was not to be run: its body may be rubbish, or a forgery
            about |= {"name": lease.envelope.name, "not_run": not_run(lease.envelope)}
        remember(self.unsettled, lease.id, about)

    def order_ready(self) -> None:
        """Put what is ready into order: the most urgent first, and of those the one that was leased first."""
        priorities = [delivery.priority for delivery in self.ready]
        if priorities != sorted(priorities):
            self.ready = deque(sorted(self.ready, key=lambda delivery: (delivery.priority, delivery.leased_at)))

    @property
    def oldest_ready(self) -> float:
        """When the oldest of what is ready was leased; infinity if there is none."""
        ready = self.ready
        if ready and ready[0].priority == ready[-1].priority:  # nearly always, and many may be ready
            return ready[0].leased_at
        return min([delivery.leased_at for delivery in ready], default=math.inf)

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Make what no child has read ready again, in front of its like; at a stop give it back."""
        for delivery in reversed(deliveries):
            delivery.slot = -1
            if (self.is_stopping or delivery.cancelled) and not delivery.lost:
                self.outcomes.append((delivery, NotRun()))
            elif not delivery.lost:
                self.ready.appendleft(delivery)
        self.order_ready()

    def stop(self, why: str, number: int | None = None, left: int | None = None, level: str = "info") -> None:
        """Begin a stop: lease nothing more, let attempts run within the grace. Asked twice: kill."""
        if self.stopping is Stopping.NO:
            self.stopping, self.stop_by = Stopping.DRAIN, self.now + self.settings.stop_grace
        else:
            self.stopping, self.stop_by = Stopping.KILL, min(self.stop_by, self.now)
        name = signal.Signals(number).name if number is not None else None
        running = self.slots.count(SlotState.BUSY)
        waits = then = None
        if running and name and self.stopping is Stopping.DRAIN:
            waits = f"up to {format_duration(self.settings.stop_grace)} for them"
            again = {"SIGINT": "a second Ctrl-C", "SIGHUP": "SIGTERM"}.get(name, f"a second {name}")
            then = f"kills them, as {again} does now"
        self.note(level, why, signal=name, running=running, left=left, waits=waits, then=then)

    def fail(self, error: str, why: str, stack: str = "") -> None:
        """Stop with exit status 1, and this error as the last word, after the `stack` of an app's import.

        A stop that is under way goes on, and jobs keep its grace.
        """
        self.fatal, self.fatal_stack = error, stack
        if not self.is_stopping:
            self.stop(why, level="error")

    def note(self, level: str, event: str, **fields: Any) -> None:
        self.notes.append(Note(level, event, {k: v for k, v in fields.items() if v is not None}))


def not_run(envelope: JobEnvelope) -> str | None:
    """Return the handlers of the jobs that come after this one in a chain, for the log of its death."""
    if envelope.version > WIRE_VERSION:  # it may keep anything there
        return None
    return ", ".join(str(job.get("handler")) for job in envelope.then) or None


def _due_at(schedule: str, enqueued_at: float) -> float:
    """Return the Unix time of the enqueue, or of its schedule if that is later. The schedule may be anything."""
    try:
        return max(enqueued_at, datetime.fromisoformat(schedule).timestamp())
    except (ValueError, OverflowError, OSError):
        return enqueued_at
