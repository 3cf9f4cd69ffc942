"""The numbers of a pool at one moment, and its attempts, as metrics and history take them.

Events are counted where they change the pool's state (`Pool.metrics`). All of it runs on the loop's thread, so
nothing is locked. Others ask the loop for a `snapshot` (`LoopCalls`). Attempts are made of a `Recorded` elsewhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from jobpool import __version__
from jobpool.errors import MalformedEnvelope
from jobpool.master.slots import Delivery, SlotState
from jobpool.master.state import Pool
from jobpool.message.death import cause_headline
from jobpool.message.outcome import Rejected, Snoozed
from jobpool.message.settlement import Abandon, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool.policy.classify import status_of
from jobpool.telemetry.history.row import UNNAMED, AttemptRow
from jobpool.telemetry.history.writer import Feed
from jobpool.telemetry.metrics import catalogue as names
from jobpool.telemetry.metrics.memory import Snapshot, try_count

REMEMBER_DEAD_S = 60.0  # seconds for which an ended child counts in `child_peak_rss_bytes`


class Observer:
    """The pool's numbers and attempts for others. `feed`: gathers attempts for history.

    `unwritten`: rows that history's writer left out.
    """

    def __init__(self, feed: Feed[Recorded] | None = None, unwritten: Callable[[], int] = lambda: 0) -> None:
        self.feed = feed
        self._unwritten = unwritten

    def attend(self, pool: Pool) -> None:
        """Have the answers of this pool's broker recorded, if there is a history."""
        if self.feed is not None:
            pool.record = partial(try_count, self._record, self.feed)

    def _record(self, feed: Feed[Recorded], answers: list[tuple[Delivery, Settlement, Settled]]) -> None:
        offset = time.time() - time.monotonic()
        for delivery, settlement, answer in answers:
            if is_history(delivery, settlement, answer):
                size = len(delivery.lease.body) + len(delivery.output) + len(delivery.error)
                feed.add(name_of(delivery), Recorded(delivery, settlement, answer, offset), size)

    def snapshot(self, pool: Pool) -> Snapshot:
        """Return all numbers of this moment. Only on the loop's thread."""
        gauge = pool.metrics.gauge
        for queue, stats in pool.stats.items():
            for state in ("waiting", "delayed", "leased", "dead"):
                gauge(names.MESSAGES, getattr(stats, state), (queue, state))
            gauge(names.OLDEST, stats.oldest or 0.0, (queue,))
        for slot_state in (state for state in SlotState if state is not SlotState.EMPTY):
            gauge(names.SLOTS, pool.slots.count(slot_state), (slot_state.value,))
        for queue in pool.queues:
            gauge(names.BREAKER, float(queue in pool.open_breakers), (queue,))
            gauge(names.PAUSED, float(queue in pool.paused), (queue,))
        dead = [peak for at, peak in pool.dead_peaks if pool.now - at <= REMEMBER_DEAD_S]
        peaks = [*(slot.peak_rss for slot in pool.slots.live), *dead]
        gauge(names.PEAK_RSS, max(peaks, default=0))
        gauge(names.BUILD, 1.0, (__version__,))
        gauge(names.HISTORY_DROPPED, (self.feed.dropped if self.feed is not None else 0) + self._unwritten())
        return pool.metrics.snapshot()


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
