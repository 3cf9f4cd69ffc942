"""The state of a pool, and what each event does to it: bookkeeping, no I/O, no decisions.

Decisions are in plan.py. What must be said to a person is noted in `notes` and logged by the loop.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from jobpool.backend import QueueStats
from jobpool.master import events as ev
from jobpool.master.boot import BootBackOff
from jobpool.master.counters import Counters
from jobpool.master.delivery import Delivery
from jobpool.master.settings import PoolSettings
from jobpool.master.slots import Ending, Slot, Slots, SlotState
from jobpool.master.verdicts import cause_of_death, headline, outcome_of_death, outcome_of_result
from jobpool.mechanism.frames import HandlerInfo, Reply, Verdict
from jobpool.outcome import LostLease, NeverStarted, NotRun, Outcome, Stopped, Succeeded, UnknownHandler
from jobpool.policy.decide import counters_of
from jobpool.policy.lookahead import LookAhead
from jobpool.settlement import Abandon, Ack, Release, Settled, Settlement

V = TypeVar("V")

REMEMBERED_IDS = 10_000
"""How many message ids a pool remembers for "third time in a row" and "first seen"."""


ANSWER_GRACE = 0.5
"""Seconds past the stop's grace for which the last settlements may wait for the broker; the reaper has them later."""


BROKEN_GRACE = 0.5
"""Seconds between the close of a child's channel and its kill: mostly its death is already on its way."""


class Stopping(Enum):
    """How far a stop has come."""

    NO = "no"
    DRAIN = "drain"
    KILL = "kill"


class ServerState(Enum):
    STARTING = "starting"
    LOADED = "loaded"
    GONE = "gone"


@dataclass(slots=True)
class Server:
    """One fork server, as the pool knows it. A generation is one import of the app."""

    generation: int
    started_at: float
    state: ServerState = ServerState.STARTING
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the log: level as in `logging`, an event in words, and fields."""

    level: int
    event: str
    fields: dict[str, Any]


def slot_count(workers: int) -> int:
    """Slots to lay out for `workers` children: room for TTIN, and for a reload's spare."""
    return max(2 * workers, workers + 16) + 1


@dataclass(slots=True)
class Pool:
    """Everything the master knows. Only the loop's thread touches it. Times are CLOCK_MONOTONIC seconds."""

    settings: PoolSettings
    now: float
    target: int = 0
    slots: Slots = field(init=False)
    lookahead: LookAhead = field(init=False)
    ready: deque[Delivery] = field(default_factory=deque)
    held: dict[int, Delivery] = field(default_factory=dict)
    verdicts: list[tuple[Delivery, Outcome]] = field(default_factory=list)
    asks: list[tuple[int, tuple[dict[str, Any], ...]]] = field(default_factory=list)
    replies: list[tuple[int, Reply]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    handlers: dict[str, HandlerInfo] = field(default_factory=dict)
    servers: dict[int, Server] = field(default_factory=dict)
    generation: int = 0
    """The generation new children are forked from; 0 = none has loaded yet."""
    boot: BootBackOff = field(default_factory=BootBackOff)
    counters: Counters = field(default_factory=Counters)
    stats: dict[str, QueueStats] = field(default_factory=dict)
    stopping: Stopping = Stopping.NO
    stop_by: float = 0.0
    reload_asked: bool = False
    stacks_asked: bool = False
    fatal: str = ""
    broker_silent: bool = False
    leased_total: int = 0
    ended_total: int = 0
    checked_at: float = 0.0
    _nonce: int = 0
    _child: int = 0
    _never_started: dict[str, int] = field(default_factory=dict)
    _unknown_since: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = self.settings.workers
        self.slots = Slots(slot_count(self.settings.workers))
        self.lookahead = LookAhead(self.now)

    # --- reading ------------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        return self.stopping is not Stopping.NO

    @property
    def finished(self) -> bool:
        """Every child is collected, and every settlement was answered, or the broker's time for it is over."""
        over = self.now >= self.stop_by + ANSWER_GRACE
        return self.is_stopping and not self.slots.live and (not self.held or over)

    def next_child(self) -> int:
        self._child += 1
        return self._child

    def server(self) -> Server | None:
        """The fork server that new children come from."""
        return self.servers.get(self.generation)

    # --- events -------------------------------------------------------------------------------------

    def apply(self, event: ev.Event, now: float) -> None:
        """Note what happened."""
        self.now = now
        _APPLY[type(event)](self, event)
        if 0 < self.settings.max_total <= self.ended_total and not self.is_stopping:
            self.stop("as many jobs as were asked for are done")

    def _leased(self, event: ev.Leased) -> None:
        self.counters.fetched += len(event.leases)
        self.leased_total += len(event.leases)
        for inspected in event.leases:
            self._take_in(inspected)

    def _take_in(self, inspected: ev.Inspected) -> None:
        lease, outcome = inspected.lease, inspected.outcome
        self._nonce += 1
        delivery = Delivery(lease, self._nonce, 0.0, "", self.now)
        self.held[self._nonce] = delivery
        if outcome is None:
            outcome = self._prepare(delivery)
        if outcome is None:
            self.ready.append(delivery)
        else:
            self.verdicts.append((delivery, outcome))

    def _prepare(self, delivery: Delivery) -> Outcome | None:
        envelope = delivery.lease.envelope
        delivery.handler = envelope.job
        if self.is_stopping:
            return NotRun()
        info = self.handlers.get(envelope.job)
        if info is None:
            return UnknownHandler(envelope.job, self.unknown_for(delivery.lease.id))
        timeout = envelope.timeout if envelope.timeout is not None else info.timeout
        delivery.timeout = self.settings.default_timeout if timeout is None else timeout
        return None

    def unknown_for(self, ident: str) -> float:
        """Seconds since this pool first saw the message with a handler that it does not know."""
        first = _remember(self._unknown_since, ident, self._unknown_since.get(ident, self.now))
        return self.now - first

    def _broker_silent(self, event: ev.BrokerSilent) -> None:
        if not self.broker_silent:
            self.note("error", "the broker does not answer; trying again until it does", error=event.error)
        self.broker_silent = True

    def _broker_answered(self, _: ev.BrokerAnswered) -> None:
        if self.broker_silent:
            self.note("warning", "the broker answers again")
        self.broker_silent = False

    def _answered(self, event: ev.Answered) -> None:
        for delivery, settlement, answer in event.answers:
            self.held.pop(delivery.nonce, None)
            self._count(delivery, settlement, answer)

    def _count(self, delivery: Delivery, settlement: Settlement, answer: Settled) -> None:
        if answer and type(settlement) is Ack and type(delivery.outcome) is Succeeded:
            self.counters.succeeded += 1  # the hot path
            self.ended_total += 1
            return
        if not answer:
            lease = delivery.lease
            self.note("warning", "a settlement was refused", id=lease.id, queue=lease.queue, answer=answer.value)
        elif isinstance(settlement, Abandon):
            self._note_dead(delivery, settlement)
        if isinstance(settlement, Release):
            self.leased_total -= 1
        else:
            self.ended_total += 1
        if delivery.outcome is not None:
            self.counters.add(counters_of(settlement, delivery.outcome, answer))

    def _note_dead(self, delivery: Delivery, settlement: Abandon) -> None:
        lease = delivery.lease
        self.note(
            "critical",
            "a message is dead",
            id=lease.id,
            handler=delivery.handler or None,
            queue=lease.queue,
            attempts=lease.attempts + 1,
            reason=settlement.reason,
            error=headline(settlement.error),
        )

    def _given_up(self, event: ev.GivenUp) -> None:
        for delivery in event.deliveries:
            self.held.pop(delivery.nonce, None)
            self.counters.lost += 1
            self.note("warning", "a lease ended before the broker answered its settlement", id=delivery.lease.id)

    def _renewed(self, event: ev.Renewed) -> None:
        for delivery, lease in event.renewals:
            if lease is not None:
                delivery.lease = lease
            elif not delivery.settling:
                self.lose(delivery)

    def lose(self, delivery: Delivery) -> None:
        """Its lease has ended: whatever comes of the attempt, nothing is settled."""
        if delivery.lost or self.held.pop(delivery.nonce, None) is None:
            return
        delivery.lost = True
        self.counters.lost += 1
        self.note("warning", "a lease was lost", id=delivery.lease.id, queue=delivery.lease.queue)
        if delivery.slot < 0 and delivery in self.ready:
            self.ready.remove(delivery)

    def _reap_done(self, event: ev.ReapDone) -> None:
        self.counters.reaped += len(event.reaped)
        for reaped in event.reaped:
            if reaped.dead:
                self.counters.dead += 1
                self.note(
                    "critical",
                    "a message is dead: crash limit",
                    id=reaped.id,
                    queue=reaped.queue,
                    cause=headline(reaped.cause),
                )

    def _counted(self, event: ev.Counted) -> None:
        self.stats = event.stats
        is_empty = all(counts.pending == 0 for counts in event.stats.values())
        if self.settings.until_empty and is_empty and not self.held and not self.is_stopping:
            self.stop("the queues are empty")

    def _produced(self, event: ev.Produced) -> None:
        self.replies.append((event.child, Reply(event.ids, event.kind, event.error)))

    def _app_loaded(self, event: ev.AppLoaded) -> None:
        server = self.servers.get(event.generation)
        if server is None or server.ending:
            return
        server.state = ServerState.LOADED
        self.generation = event.generation
        self.handlers = {info.name: info for info in event.handlers}
        self.note("info", "app loaded", handlers=sorted(self.handlers), seconds=round(event.seconds, 3))
        if not event.preloaded:
            self.note(
                "warning",
                "the app leaves threads running after its import: no safe forking, each child imports it",
                threads=event.threads,
            )

    def _app_failed(self, event: ev.AppFailed) -> None:
        server = self.servers.get(event.generation)
        if server is not None:
            server.ending = True
        if self.generation == 0 and self.boot.failures == 0:
            self.fatal = event.error
            self.stop("the app does not load")
            return
        self.note("error", "the app does not load; what runs goes on", error=event.error, trace=event.trace)
        if event.generation >= self.generation:
            self.boot.failed(event.error, self.now)

    def _fork_server_gone(self, event: ev.ForkServerGone) -> None:
        server = self.servers.pop(event.generation, None)
        if server is None or server.ending or self.is_stopping:
            return
        self.note("error", "the fork server died; another is started", generation=event.generation)
        self.boot.failed("the fork server died", self.now)

    def _child_spawned(self, event: ev.ChildSpawned) -> None:
        slot = self.slots.by_child(event.child)
        if slot is not None:
            slot.pid = event.pid

    def _spawn_refused(self, event: ev.SpawnRefused) -> None:
        if self.slots.collect(event.child, self.now) is not None:
            self.boot.failed(event.error, self.now)
            self.note("error", "no child could be forked", error=event.error)

    def _child_ready(self, event: ev.ChildReady) -> None:
        slot = self.slots.by_child(event.child)
        if slot is not None and slot.state is SlotState.STARTING:
            slot.move(SlotState.IDLE, self.now)
            self.boot.succeeded()

    def _child_boot_failed(self, event: ev.ChildBootFailed) -> None:
        slot = self.slots.by_child(event.child)
        if slot is not None:
            slot.end(Ending.BOOT, self.now, event.error, killed=False)
            self.boot.failed(event.error, self.now)
            self.note("error", "a child could not boot", error=event.error)

    def _child_result(self, event: ev.ChildResult) -> None:
        result, slot = event.result, self.slots.by_child(event.child)
        if slot is None:
            return
        delivery = slot.answered(result.nonce, self.now)
        if result.leaving:
            self._child_leaves(slot, result.leaving)
        if delivery is None:
            self.note("warning", "an answer to an attempt that is not running was ignored", slot=slot.index)
            return
        self.lookahead.finished(1, self.now, result.duration)
        if delivery.lost:
            return
        ident = delivery.lease.id
        if self._never_started:
            self._never_started.pop(ident, None)
        seen_for = self.unknown_for(ident) if result.verdict is Verdict.UNKNOWN_HANDLER else 0.0
        self.verdicts.append((delivery, outcome_of_result(result, delivery.handler, seen_for)))

    def _child_leaves(self, slot: Slot, why: str) -> None:
        slot.end(Ending.RECYCLE, self.now, why, killed=False)
        self.note("info", "a child is replaced", slot=slot.index, pid=slot.pid, why=why)

    def _child_asked(self, event: ev.ChildAsked) -> None:
        self.asks.append((event.child, tuple(event.ask.definitions)))

    def _child_broken(self, event: ev.ChildBroken) -> None:
        slot = self.slots.by_child(event.child)
        if slot is None or slot.state is SlotState.DYING:
            return
        slot.retiring = True  # nothing more is handed to it
        slot.broken_at = self.now
        if not event.closed:
            slot.broken_at -= BROKEN_GRACE
            self.note("warning", "a child sent rubbish", slot=slot.index, pid=slot.pid, why=event.why)

    def _child_died(self, event: ev.ChildDied) -> None:
        slot = self.slots.by_child(event.child)
        if slot is None:
            return
        was, ending, text = slot.state, slot.ending, slot.ending_text
        self.slots.collect(event.child, self.now)
        unread, rest = _split(slot.deliveries, event.unread)
        slot.deliveries.clear()
        self.put_back(unread)
        for delivery in rest:
            self._attempt_died(delivery, event, ending, text)
        if was is SlotState.STARTING:
            self.boot.failed(cause_of_death(event.exited), self.now)
        if ending not in (Ending.RECYCLE, Ending.RETIRE, Ending.STOP):
            self._note_death(slot, event, ending)

    def _note_death(self, slot: Slot, event: ev.ChildDied, ending: Ending) -> None:
        cause = cause_of_death(event.exited, ending.value if ending is not Ending.NONE else "")
        slot.last_death = cause
        if ending is Ending.TIMEOUT:
            slot.timeouts += 1
        else:
            slot.crashes += 1
        self.note("warning", "a child died", slot=slot.index, pid=event.exited.pid, cause=cause)

    def _attempt_died(self, delivery: Delivery, event: ev.ChildDied, ending: Ending, text: str) -> None:
        if delivery.lost:
            return
        started = delivery.nonce == event.started
        if started or ending in (Ending.TIMEOUT, Ending.STOP, Ending.LOST):
            outcome = outcome_of_death(event.exited, ending, text, event.stack, event.output)
        else:
            outcome = self._never_started_outcome(delivery, cause_of_death(event.exited))
        if isinstance(outcome, LostLease):
            self.lose(delivery)
        else:
            self.verdicts.append((delivery, outcome))

    def _never_started_outcome(self, delivery: Delivery, cause: str) -> Outcome:
        if self.is_stopping:
            return Stopped()
        ident = delivery.lease.id
        times = self._never_started.get(ident, 0) + 1
        _remember(self._never_started, ident, times)
        return NeverStarted(times, cause)

    def _took_back(self, event: ev.TookBack) -> None:
        slot = self.slots.by_child(event.child)
        if slot is not None:
            self.put_back(slot.take_back(set(event.nonces), self.now))

    def put_back(self, deliveries: list[Delivery]) -> None:
        """What no child has read is ready again, in front; at a stop it is given back."""
        for delivery in reversed(deliveries):
            delivery.slot = -1
            if delivery.lost:
                continue
            if self.is_stopping:
                self.verdicts.append((delivery, NotRun()))
            else:
                self.ready.appendleft(delivery)

    def _sampled(self, event: ev.Sampled) -> None:
        for child, rss, _ in event.samples:
            slot = self.slots.by_child(child)
            if slot is not None:
                slot.rss = rss
                slot.peak_rss = max(slot.peak_rss, rss)

    def _signal(self, event: ev.SignalCame) -> None:
        number = event.number
        if number in (signal.SIGTERM, signal.SIGINT):
            self.stop("a second signal: children are killed" if self.is_stopping else "stopping", number)
        elif number == signal.SIGQUIT:
            self.stacks_asked = True
        elif number == signal.SIGHUP:
            self.reload_asked = True
        elif number == signal.SIGTTIN:
            self.target = min(self.target + 1, len(self.slots) - 1)
        elif number == signal.SIGTTOU:
            self.target = max(1, self.target - 1)

    def _thread_died(self, event: ev.ThreadDied) -> None:
        self.fatal = f"the {event.name} thread of the master failed; leases it held come back when they expire"
        self.note("critical", "a thread of the master failed: a fault in jobpool, please report it", trace=event.trace)
        self.stop("stopping after a fault")

    def stop(self, why: str, number: int | None = None) -> None:
        """Begin a stop: lease nothing more, let attempts run within the grace. Asked twice: kill."""
        if self.stopping is Stopping.NO:
            self.stopping = Stopping.DRAIN
            self.stop_by = self.now + self.settings.stop_grace
        else:
            self.stopping = Stopping.KILL
            self.stop_by = min(self.stop_by, self.now)
        name = signal.Signals(number).name if number is not None else None
        self.note("info", why, signal=name, running=self.slots.count(SlotState.BUSY))

    def note(self, level: str, event: str, **fields: Any) -> None:
        """Keep something for the log."""
        self.notes.append(Note(_LEVELS[level], event, {k: v for k, v in fields.items() if v is not None}))


_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_APPLY: dict[type[Any], Callable[[Pool, Any], None]] = {
    ev.Leased: Pool._leased,
    ev.BrokerSilent: Pool._broker_silent,
    ev.BrokerAnswered: Pool._broker_answered,
    ev.Answered: Pool._answered,
    ev.GivenUp: Pool._given_up,
    ev.Renewed: Pool._renewed,
    ev.ReapDone: Pool._reap_done,
    ev.Counted: Pool._counted,
    ev.Produced: Pool._produced,
    ev.AppLoaded: Pool._app_loaded,
    ev.AppFailed: Pool._app_failed,
    ev.ForkServerGone: Pool._fork_server_gone,
    ev.ChildSpawned: Pool._child_spawned,
    ev.SpawnRefused: Pool._spawn_refused,
    ev.ChildReady: Pool._child_ready,
    ev.ChildBootFailed: Pool._child_boot_failed,
    ev.ChildResult: Pool._child_result,
    ev.ChildAsked: Pool._child_asked,
    ev.ChildBroken: Pool._child_broken,
    ev.ChildDied: Pool._child_died,
    ev.TookBack: Pool._took_back,
    ev.Sampled: Pool._sampled,
    ev.SignalCame: Pool._signal,
    ev.ThreadDied: Pool._thread_died,
}


def _remember(memory: dict[str, V], key: str, value: V) -> V:
    memory[key] = value
    if len(memory) > REMEMBERED_IDS:
        del memory[next(iter(memory))]
    return value


def _split(deliveries: deque[Delivery], unread: frozenset[int]) -> tuple[list[Delivery], list[Delivery]]:
    """What the child had not read, and the rest."""
    return [d for d in deliveries if d.nonce in unread], [d for d in deliveries if d.nonce not in unread]
