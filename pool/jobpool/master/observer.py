"""Measurements and history of a pool. The observer sees some events before they are applied, and decides nothing.

Jobs are counted where the pool's state changes (`Pool.metrics`). All of it runs on the loop's thread, so nothing is
locked; others ask the loop for a `snapshot` (`LoopCalls`). The attempts that history keeps are made from a `Recorded`
on the writer's thread, not the loop's.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from jobpool.clock import Clock
from jobpool.errors import MalformedEnvelope
from jobpool.master import events as ev
from jobpool.master.scheduler import SchedulerFired
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.message.outcome import EndReason, Rejected, Snoozed
from jobpool.message.settlement import Abandon, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool.policy.outcomes import signal_name, status_of
from jobpool.telemetry.history.feed import Feed
from jobpool.telemetry.history.row import UNNAMED, Attempt
from jobpool.telemetry.metrics import catalogue as names
from jobpool.telemetry.metrics.memory import UNCOUNTED, Snapshot

REMEMBER_DEAD_S = 60.0
"""Seconds for which an ended child counts in `child_peak_rss_bytes`."""

log = logging.getLogger("jobpool.metrics")


class Observer:
    """See the module.

    Args:
        clock: The backend's.
        version: Of jobpool.
        feed: Where attempts are gathered for history; None = there is no history.
        unwritten: Rows that history's writer has had to leave out.
    """

    def __init__(
        self,
        clock: Clock,
        version: str,
        *,
        feed: Feed[Recorded] | None = None,
        unwritten: Callable[[], int] = lambda: 0,
    ) -> None:
        self._clock = clock
        self._version = version
        self.feed = feed
        self._unwritten = unwritten
        self._dead: deque[tuple[float, int]] = deque(maxlen=1000)
        self._on: dict[type[Any], Callable[[Pool, Any], None]] = {
            ev.Answered: self._answered,
            ev.Renewed: self._renewed,
            ev.ChildDied: self._child_died,
            SchedulerFired: self._fired,
        }

    def attend(self, pool: Pool) -> None:
        """Be told of the pool's events before they are applied."""
        pool.observers = {kind: partial(_try, seen) for kind, seen in self._on.items()}

    # --- messages -----------------------------------------------------------------------------------

    def _answered(self, pool: Pool, event: ev.Answered) -> None:
        if event.took:
            pool.metrics.observe(names.SETTLE, event.took)
        if self.feed is not None:
            self._record(self.feed, event, time.time() - time.monotonic())

    def _record(self, feed: Feed[Recorded], event: ev.Answered, offset: float) -> None:
        for delivery, settlement, answer in event.answers:
            if is_history(delivery, settlement, answer):
                feed.add(name_of(delivery), Recorded(delivery, settlement, answer, offset), size_of(delivery))

    def _renewed(self, pool: Pool, event: ev.Renewed) -> None:
        now = self._clock.boot()
        for delivery, lease in event.renewals:
            if lease is not None:
                pool.metrics.observe(names.MARGIN, max(0.0, delivery.lease.expires_at - now))

    # --- schedules ----------------------------------------------------------------------------------

    def _fired(self, pool: Pool, event: SchedulerFired) -> None:
        for seconds in event.lateness:
            pool.metrics.observe(names.CRON_LATENESS, seconds)

    # --- children -----------------------------------------------------------------------------------

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
            # The attempt has no result of its own; what it ran and printed belongs to its record all the same.
            head = slot.deliveries[0]
            head.end(slot.head_since, max(0.0, now - slot.head_since), event.output, "")

    # --- reading ------------------------------------------------------------------------------------

    def snapshot(self, pool: Pool) -> Snapshot:
        """All numbers of this moment. Only on the loop's thread."""
        self._set_gauges(pool, time.monotonic())
        return pool.metrics.snapshot()

    def _set_gauges(self, pool: Pool, now: float) -> None:
        gauge = pool.metrics.gauge
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
    """Measure it. An error of ours here harms no job."""
    try:
        count(*what)
    except Exception:
        log.exception(UNCOUNTED, extra={"limit": "metrics"})


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
