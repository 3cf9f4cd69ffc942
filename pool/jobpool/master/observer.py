"""Measurements and history of a pool. The observer sees some events before they are applied, and decides nothing.

Jobs are counted where the pool's state changes (`Pool.metrics`). All of it runs on the loop's thread, so nothing is
locked. Others ask the loop for a `snapshot` (`LoopCalls`); attempts are made of a `Recorded` on history's own thread.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from jobpool.clock import Clock
from jobpool.errors import MalformedEnvelope
from jobpool.master import events as ev
from jobpool.master.scheduler import SchedulerFired
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.message.death import cause_headline
from jobpool.message.outcome import EndReason, Rejected, Snoozed
from jobpool.message.settlement import Abandon, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool.policy.classify import signal_name, status_of
from jobpool.telemetry.history.row import UNNAMED, AttemptRow
from jobpool.telemetry.history.writer import Feed
from jobpool.telemetry.metrics import catalogue as names
from jobpool.telemetry.metrics.memory import Snapshot, try_count

REMEMBER_DEAD_S = 60.0  # seconds for which an ended child counts in `child_peak_rss_bytes`


class Observer:
    """Counter of the pool's events. `feed`: gathers attempts for history. `unwritten`: rows its writer left out."""

    def __init__(
        self, clock: Clock, version: str, feed: Feed[Recorded] | None = None, unwritten: Callable[[], int] = lambda: 0
    ) -> None:
        self._clock = clock
        self._version = version
        self.feed = feed
        self._unwritten = unwritten
        self._dead: deque[tuple[float, int]] = deque(maxlen=1000)

    def attend(self, pool: Pool) -> None:
        seen: dict[type[Any], Callable[[Pool, Any], None]] = {
            ev.Answered: self._answered,
            ev.Renewed: self._renewed,
            ev.ChildDied: self._child_died,
            SchedulerFired: self._fired,
        }
        pool.observers = {kind: partial(try_count, see) for kind, see in seen.items()}

    def _answered(self, pool: Pool, event: ev.Answered) -> None:
        if event.took:
            pool.metrics.observe(names.SETTLE, event.took)
        if self.feed is None:
            return
        offset = time.time() - time.monotonic()
        for delivery, settlement, answer in event.answers:
            if is_history(delivery, settlement, answer):
                size = len(delivery.lease.body) + len(delivery.output) + len(delivery.error)
                self.feed.add(name_of(delivery), Recorded(delivery, settlement, answer, offset), size)

    def _renewed(self, pool: Pool, event: ev.Renewed) -> None:
        now = self._clock.boot()
        for delivery, lease in event.renewals:
            if lease is not None:
                pool.metrics.observe(names.MARGIN, max(0.0, delivery.lease.expires_at - now))

    def _fired(self, pool: Pool, event: SchedulerFired) -> None:
        for seconds in event.lateness:
            pool.metrics.observe(names.CRON_LATENESS, seconds)

    def _child_died(self, pool: Pool, event: ev.ChildDied) -> None:
        slot = pool.slots.by_child(event.child)
        if slot is None:
            return
        now = time.monotonic()
        self._dead.append((now, max(event.exited.peak_rss, slot.peak_rss)))
        pool.metrics.count(names.EXITS, (cause_of_exit(slot, event),))
        deadline = slot.deadline()
        if slot.ending is EndReason.TIMEOUT and deadline is not None:
            pool.metrics.observe(names.OVERRUN, max(0.0, now - deadline))
        if slot.deliveries and slot.deliveries[0].nonce == event.started:
            # The attempt has no result of its own, but its record tells its run and its output all the same.
            head = slot.deliveries[0]
            head.began, head.ran, head.output = slot.head_since, max(0.0, now - slot.head_since), event.output

    def snapshot(self, pool: Pool) -> Snapshot:
        """Return all numbers of this moment. Only on the loop's thread."""
        gauge, now = pool.metrics.gauge, time.monotonic()
        for queue, stats in pool.stats.items():
            for state in ("waiting", "delayed", "leased", "dead"):
                gauge(names.MESSAGES, getattr(stats, state), (queue, state))
            gauge(names.OLDEST, stats.oldest or 0.0, (queue,))
        for slot_state in (state for state in SlotState if state is not SlotState.EMPTY):
            gauge(names.SLOTS, pool.slots.count(slot_state), (slot_state.value,))
        for queue in pool.queues:
            gauge(names.BREAKER, float(queue in pool.open_breakers), (queue,))
            gauge(names.PAUSED, float(queue in pool.paused), (queue,))
        while self._dead and now - self._dead[0][0] > REMEMBER_DEAD_S:
            self._dead.popleft()
        peaks = [*(slot.peak_rss for slot in pool.slots.live), *(peak for _, peak in self._dead)]
        gauge(names.PEAK_RSS, max(peaks, default=0))
        gauge(names.BUILD, 1.0, (self._version,))
        gauge(names.HISTORY_DROPPED, (self.feed.dropped if self.feed is not None else 0) + self._unwritten())
        return pool.metrics.snapshot()


def cause_of_exit(slot: Slot, event: ev.ChildDied) -> str:
    """Return a word of a small set: why the master ended a child, else the signal, else `exit`."""
    exited = event.exited
    died_before = slot.ending is EndReason.SERVER and exited.signal != signal.SIGKILL
    if slot.ending is not EndReason.NONE and not died_before:
        return str(slot.ending.value).replace(" ", "-")
    if exited.signal == signal.SIGKILL and "out of memory" in event.killer:
        return "oom-kill"
    if exited.signal is not None:
        return signal_name(exited.signal).replace(" ", "-")
    return "retire" if slot.retiring and exited.code == 0 and not slot.deliveries else "exit"


class Recorded(Struct):
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
    """Return the name under which its attempts are kept: the job's or its handler's; none if nobody vouches for it."""
    if isinstance(delivery.outcome, Rejected):
        return UNNAMED
    return delivery.lease.envelope.name or delivery.lease.envelope.job


def attempt_of(recorded: Recorded) -> AttemptRow:
    delivery, settlement = recorded.delivery, recorded.settlement
    lease, outcome = delivery.lease, delivery.outcome
    assert outcome is not None
    job, payload = "", None
    cause = settlement.cause if isinstance(settlement, Nack | Abandon | Move | Forfeit) else None
    told = settlement.error if isinstance(settlement, Nack | Abandon | Move) else None
    with contextlib.suppress(MalformedEnvelope):  # rejected for just that
        job, payload = lease.envelope.job, lease.envelope.full_payload
    return AttemptRow(
        name=name_of(delivery),
        job=job,
        id=lease.id,
        attempt=lease.attempts + 1,
        queue=lease.queue,
        payload=payload,
        status=status_of(settlement, outcome, recorded.answer).value,
        output=delivery.output,
        error=told or delivery.error or None,
        start=None if delivery.ran is None else delivery.began + recorded.offset,
        duration=delivery.ran,
        cause=cause if cause_headline(cause) else None,  # else it only says what was printed, as `output` does
    )
