"""Numbers and history of a pool. The observer sees each event before it is applied, and decides nothing.

A settlement is counted when the broker has accepted it. All of it runs on the loop's thread, so nothing is locked;
others ask the loop for a `snapshot` (`LoopCalls`). What comes once a job is in `_ended`, and kept short. The
attempts that history keeps are made from a `Recorded` on the writer's thread, not the loop's.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from jobpool.clock import Clock
from jobpool.errors import MalformedEnvelope
from jobpool.master import events as ev
from jobpool.master.scheduler import SchedulerFired
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.message.lease import JobLease
from jobpool.message.outcome import EndReason, Rejected, Snoozed
from jobpool.message.settlement import Abandon, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool.policy import counters as counted
from jobpool.policy.counters import status_of
from jobpool.policy.outcomes import signal_name
from jobpool.telemetry.history.feed import Feed
from jobpool.telemetry.history.row import UNNAMED, Attempt
from jobpool.telemetry.metrics import catalogue as names
from jobpool.telemetry.metrics.collector import MetricsCollector
from jobpool.telemetry.metrics.memory import OTHER, MemoryMetrics, Snapshot

REMEMBER_DEAD_S = 60.0
"""Seconds for which an ended child counts in `child_peak_rss_bytes`."""

SUCCEEDED: tuple[str, ...] = ("succeeded",)
LOST = ("lease_lost",)
REAPED = ("reaped",)
REAPED_DEAD = ("reaped", "failed_permanently")

MAX_RUN_S = 1e9
"""Seconds. A child says how long its handler ran, and user code shares its process: what cannot be is not believed."""


UNCOUNTED = "an event of the pool could not be counted"

log = logging.getLogger("jobpool.metrics")


class Observer:
    """See the module.

    Args:
        memory: Where numbers are kept.
        clock: The backend's.
        version: Of jobpool.
        also: A collector of the user's own, which is told the same.
        feed: Where attempts are gathered for history; None = there is no history.
        unwritten: Rows that history's writer has had to leave out.
    """

    def __init__(
        self,
        memory: MemoryMetrics,
        clock: Clock,
        version: str,
        *,
        also: MetricsCollector | None = None,
        feed: Feed[Recorded] | None = None,
        unwritten: Callable[[], int] = lambda: 0,
    ) -> None:
        self._memory = memory
        self._to: tuple[MetricsCollector, ...] = (memory,) if also is None else (memory, also)
        self._clock = clock
        self._version = version
        self.feed = feed
        self._unwritten = unwritten
        self._offset = 0.0
        self._dead: deque[tuple[float, int]] = deque(maxlen=1000)
        self._on: dict[type[Any], Callable[[Pool, Any], None]] = {
            ev.Answered: self._answered,
            ev.Leased: self._leased,
            ev.ReapDone: self._reaped,
            ev.Renewed: self._renewed,
            ev.ChildDied: self._child_died,
            SchedulerFired: self._fired,
        }

    def attend(self, pool: Pool) -> None:
        """Be told of the pool's events before they are applied, and of each delivery that ends."""
        pool.observers = {kind: partial(_try, seen) for kind, seen in self._on.items()}
        pool.on_end = partial(self._ended, pool)

    # --- messages -----------------------------------------------------------------------------------

    def _leased(self, _: Pool, event: ev.Leased) -> None:
        for to in self._to:
            if event.leases:
                to.fetched(event.leases[0].lease.queue, len(event.leases))  # a fetch is from one queue
            for _lease in range(event.late):
                to.ended("", "", LOST)

    def _answered(self, _: Pool, event: ev.Answered) -> None:
        self._offset = time.time() - time.monotonic()
        if event.took:
            for to in self._to:
                to.observe(names.SETTLE, event.took)
        if self.feed is not None:
            self._record(self.feed, event, self._offset)

    def _ended(self, pool: Pool, delivery: Delivery, counters: tuple[str, ...], answered: bool) -> None:
        try:  # as in `_try`, a call less for each job
            lease, handler, ran = delivery.lease, delivery.handler, delivery.ran
            words = SUCCEEDED if counters is counted.SUCCEEDED else tuple(c.removeprefix("jobs_") for c in counters)
            run = wait = None
            if answered and ran is not None:
                run = ran if 0.0 <= ran < MAX_RUN_S else 0.0
                if not (lease.attempts or lease.crashes):
                    wait = _waited(lease, delivery.began + self._offset)
            label = handler if handler in pool.handlers else _label(pool, handler)
            for to in self._to:
                to.ended(lease.queue, label, words, run, wait)
        except Exception:
            log.exception(UNCOUNTED, extra={"limit": "metrics"})

    def _record(self, feed: Feed[Recorded], event: ev.Answered, offset: float) -> None:
        for delivery, settlement, answer in event.answers:
            if is_history(delivery, settlement, answer):
                feed.add(name_of(delivery), Recorded(delivery, settlement, answer, offset), size_of(delivery))

    def _reaped(self, _: Pool, event: ev.ReapDone) -> None:
        for to in self._to:
            for reaped in event.reaped:
                to.ended(reaped.queue, "", REAPED_DEAD if reaped.dead else REAPED)

    def _renewed(self, _: Pool, event: ev.Renewed) -> None:
        now = self._clock.boot()
        margins = [delivery.lease.expires_at - now for delivery, lease in event.renewals if lease is not None]
        for to in self._to:
            for margin in margins:
                to.observe(names.MARGIN, max(0.0, margin))

    # --- schedules ----------------------------------------------------------------------------------

    def _fired(self, _: Pool, event: SchedulerFired) -> None:
        for to in self._to:
            for seconds in event.lateness:
                to.observe(names.CRON_LATENESS, seconds)

    # --- children -----------------------------------------------------------------------------------

    def _child_died(self, pool: Pool, event: ev.ChildDied) -> None:
        slot = pool.slots.by_child(event.child)
        if slot is None:
            return
        now = time.monotonic()
        self._dead.append((now, max(event.exited.peak_rss, slot.peak_rss)))
        for to in self._to:
            to.count(names.EXITS, (cause_of_exit(slot, event),))
        deadline = slot.deadline()
        if slot.ending is EndReason.TIMEOUT and deadline is not None:
            for to in self._to:
                to.observe(names.OVERRUN, max(0.0, now - deadline))
        if slot.deliveries and slot.deliveries[0].nonce == event.started:
            # The attempt has no result of its own; what it ran and printed belongs to its record all the same.
            head = slot.deliveries[0]
            head.end(slot.head_since, max(0.0, now - slot.head_since), event.output, "")

    # --- reading ------------------------------------------------------------------------------------

    def snapshot(self, pool: Pool) -> Snapshot:
        """All numbers of this moment. Only on the loop's thread."""
        self._set_gauges(pool, time.monotonic())
        return self._memory.snapshot()

    def _set_gauges(self, pool: Pool, now: float) -> None:
        gauge = self._memory.gauge
        for queue, stats in pool.stats.items():
            for state in ("waiting", "delayed", "leased", "dead"):
                gauge(names.MESSAGES, getattr(stats, state), (queue, state))
            gauge(names.OLDEST, stats.oldest or 0.0, (queue,))
        for slot_state in (state for state in SlotState if state is not SlotState.EMPTY):
            gauge(names.SLOTS, pool.slots.count(slot_state), (slot_state.value,))
        for queue in pool.settings.queue_names:
            gauge(names.BREAKER, float(queue in pool.open_breakers), (queue,))
        gauge(names.PEAK_RSS, self._peak(pool, now))
        gauge(names.BUILD, 1.0, (self._version,))
        gauge(names.HISTORY_DROPPED, (self.feed.dropped if self.feed is not None else 0) + self._unwritten())

    def _peak(self, pool: Pool, now: float) -> int:
        while self._dead and now - self._dead[0][0] > REMEMBER_DEAD_S:
            self._dead.popleft()
        return max([0, *(slot.peak_rss for slot in pool.slots.live), *(peak for _, peak in self._dead)])


def _try(count: Callable[..., None], *what: Any) -> None:
    """Count it. A collector of the user's may raise anything: what is counted wrongly harms no job."""
    try:
        count(*what)
    except Exception:
        log.exception(UNCOUNTED, extra={"limit": "metrics"})


def _label(pool: Pool, handler: str) -> str:
    """Only names that the app knows: anybody can enqueue any other."""
    return handler if handler in pool.handlers or not handler else OTHER


def _waited(lease: JobLease, began: float) -> float:
    """Seconds from the enqueue, or from when it was due, to the start; 0 where the clocks disagree, or it is absurd."""
    since = lease.enqueued_at
    schedule = lease.envelope.schedule
    if schedule is not None:
        since = max(since, _unix(schedule))
    waited = began - since
    return waited if 0.0 <= waited < MAX_RUN_S else 0.0


def _unix(schedule: str) -> float:
    """Unix time of an RFC 3339 text; it is not signed, so it may be anything."""
    try:
        return datetime.fromisoformat(schedule).timestamp()
    except (ValueError, OverflowError, OSError):
        return -math.inf


def cause_of_exit(slot: Slot, event: ev.ChildDied) -> str:
    """A word of a small set: why the master ended a child, else the signal, else `exit`."""
    exited = event.exited
    died_before = slot.ending is EndReason.SERVER and exited.signal != signal.SIGKILL
    if slot.ending is not EndReason.NONE and not died_before:
        return str(slot.ending.value).replace(" ", "-")
    if exited.signal == signal.SIGKILL and "out of memory" in event.killer:
        return "oom-kill"
    if exited.signal is not None:
        return signal_name(exited.signal).replace(" ", "-")
    return "retire" if slot.retiring and exited.code == 0 and not slot.deliveries else "exit"


@dataclass(slots=True)
class Recorded:
    """The loop's share of a record. `offset`: Unix time minus CLOCK_MONOTONIC, when the answer came."""

    delivery: Delivery
    settlement: Settlement
    answer: Settled
    offset: float


def is_history(delivery: Delivery, settlement: Settlement, answer: Settled) -> bool:
    """Return whether this tells of an attempt, or of a message's end, and not only of a release."""
    if not answer or delivery.outcome is None:
        return False
    return not isinstance(settlement, Release) or isinstance(delivery.outcome, Snoozed)


def name_of(delivery: Delivery) -> str:
    """Under which its attempts are kept: the job's name, else its handler's; none for what nobody vouches for."""
    if isinstance(delivery.outcome, Rejected):
        return UNNAMED
    envelope = delivery.lease.envelope
    return envelope.name or envelope.job


def size_of(delivery: Delivery) -> int:
    """About how many bytes are held for it."""
    return len(delivery.lease.body) + len(delivery.output) + len(delivery.error)


def attempt_of(recorded: Recorded) -> Attempt:
    """Make the attempt that history keeps."""
    delivery, settlement = recorded.delivery, recorded.settlement
    lease, outcome = delivery.lease, delivery.outcome
    assert outcome is not None
    job, payload = "", None
    with contextlib.suppress(MalformedEnvelope):  # rejected for just that
        job, payload = lease.envelope.job, lease.envelope.payload
    return Attempt(
        name=name_of(delivery),
        job=job,
        id=lease.id,
        attempt=lease.attempts + 1,
        queue=lease.queue,
        payload=payload,
        status=status_of(settlement, outcome, recorded.answer).value,
        output=delivery.output,
        error=_error(settlement, delivery.error),
        start=None if delivery.ran is None else delivery.began + recorded.offset,
        duration=delivery.ran,
        cause=settlement.cause if isinstance(settlement, Nack | Abandon | Move | Forfeit) else None,
    )


def _error(settlement: Settlement, said: str) -> str | None:
    """Return the settlement's error, else the child's."""
    told = settlement.error if isinstance(settlement, Nack | Abandon | Move) else None
    return told or said or None
