"""The settle thread: carries settlements to the backend in batches, enqueues for children, and reaps.

A batch is sent again, with the same call id, until the broker has answered or every lease in it has ended: so a lost
reply does no harm. An accepted forfeit is reaped at once; otherwise each queue is reaped every third of the ttl. Where
the broker frees leases itself (`Capabilities.native_reap`), to reap costs nothing, and tells what was charged to
messages as they were fetched: there it is asked with each count, and once more at the end, so that no death is missed.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from jobpool.backend import QueueBackend, QueueStats, ReapPolicy
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.master.delivery import Delivery
from jobpool.master.events import Answered, Counted, GivenUp, ReapDone
from jobpool.master.forwarding import Forwarder
from jobpool.master.inbox import Inbox
from jobpool.master.outage import Outage
from jobpool.master.produce import produce
from jobpool.master.thread import MasterThread
from jobpool.mechanism.frames import Ask
from jobpool.settlement import Abandon, Ack, Forfeit, Move, Settlement

Work = tuple[Delivery, Settlement]

MOST_AT_ONCE = 500
"""Settlements in one call: a transaction of some 10 ms at most, so that no producer waits long behind it."""

COUNT_EVERY = 3.0
"""Seconds between two looks at the counts of the queues."""

logger = logging.getLogger("jobpool.pool")


class Settler(MasterThread):
    """See the module. `answered_at`, `reaped_at`: CLOCK_MONOTONIC seconds of the last good answer, and reap."""

    def __init__(
        self,
        backend: QueueBackend,
        queues: tuple[str, ...],
        ttl: float,
        policy: ReapPolicy,
        inbox: Inbox,
        count_every: float,
        dead_letter_queue: str | None = None,
    ) -> None:
        super().__init__("settle", inbox)
        self._backend = backend
        self._native_reap = backend.capabilities.native_reap
        self._queues = queues
        self._policy = policy
        self._clock = backend.clock
        self._wake = threading.Condition()
        self._work: deque[Work] = deque()
        self._asked: deque[tuple[int, Ask]] = deque()
        self._outage = Outage(inbox, self._halt)
        self._forwarder = Forwarder(backend, dead_letter_queue)
        self.reap_every = ttl / 3
        self._count_every = count_every
        self._reap_at = 0.0
        self._count_at = 0.0
        self.answered_at = self.reaped_at = self._clock.mono()

    def settle(self, work: list[Work]) -> None:
        """Hand over decided settlements; the answers come back as `Answered`."""
        with self._wake:
            self._work.extend(work)
            self._wake.notify()

    def produce(self, child: int, ask: Ask) -> None:
        """Enqueue for a child; the answer comes back as `Produced`."""
        with self._wake:
            self._asked.append((child, ask))
            self._wake.notify()

    def count_soon(self) -> None:
        """Count the queues again now."""
        with self._wake:
            self._count_at = 0.0
            self._wake.notify()

    def stop(self) -> None:
        """Finish what is there, as far as the broker answers, and end."""
        super().stop()
        with self._wake:
            self._wake.notify()

    def serve(self) -> None:
        while True:
            batch, asked = self._next()
            self._settle_all(batch)
            for child, ask in asked:
                self._inbox.put(produce(self._backend, child, ask))
            if self._halt.is_set():
                if not (batch or asked):
                    self._tell_charged()
                    return
                continue
            self._do_what_is_due()

    def _next(self) -> tuple[list[Work], list[tuple[int, Ask]]]:
        with self._wake:
            if not (self._work or self._asked or self._halt.is_set()):
                due = min(self._reap_at, self._count_at) - self._clock.mono()
                self._wake.wait(max(0.0, due))
            batch = [self._work.popleft() for _ in range(min(len(self._work), MOST_AT_ONCE))]
            asked = list(self._asked)
            self._asked.clear()
            return batch, asked

    # --- settling -----------------------------------------------------------------------------------

    def _settle_all(self, batch: list[Work]) -> None:
        """Most in one call; an ack that the handler may have made itself in a call of its own, known by its owner."""
        alone = [(d, s) for d, s in batch if d.acks_itself and type(s) is Ack]
        together = [(d, s) for d, s in batch if not (d.acks_itself and type(s) is Ack)] if alone else batch
        calls = [(part, secrets.token_hex(8)) for part in self._parts(together)]
        calls += [([(d, s)], f"ack:{d.lease.owner_token}") for d, s in alone]
        while calls:
            calls = [(part, call_id) for part, call_id in calls if not self._settle(part, call_id)]

    def _parts(self, batch: list[Work]) -> list[list[Work]]:
        """Where queues are on different servers, each queue's by itself: a silent one must not hold up the others."""
        if not batch or self._backend.capabilities.atomic_across_queues:
            return [batch] if batch else []
        parts: dict[str, list[Work]] = {}
        for delivery, settlement in batch:
            parts.setdefault(delivery.lease.queue, []).append((delivery, settlement))
        return list(parts.values())

    def _settle(self, batch: list[Work], call_id: str) -> bool:
        """Whether it is over: answered, or too late. Else to be called again with the same id."""
        pairs = [(delivery.lease, settlement) for delivery, settlement in batch]
        asked_at = self._clock.mono()
        try:
            answers = self._backend.settle_many(pairs, call_id)
        except BackendUnavailable as error:
            if self._all_ended(batch):
                self._inbox.put(GivenUp([delivery for delivery, _ in batch]))
                return True
            self._outage.failed(error)
            return False
        except JobpoolError as error:
            self._settle_refused(batch, error)
            return True
        self._note_answer()
        took = self.answered_at - asked_at
        self._inbox.put(Answered([(d, s, a) for (d, s), a in zip(batch, answers, strict=True)], took))
        self._reap_forfeited({d.lease.queue for d, s in batch if isinstance(s, Forfeit)})
        return True

    def _settle_refused(self, batch: list[Work], error: JobpoolError) -> None:
        """The broker refuses what one of them brings along, such as a job for a queue that is not there: each alone.

        The one that is refused again is given up without it: no job may end the pool, or hold up the others for ever.
        """
        if len(batch) == 1:
            [(delivery, settlement)] = batch
            can_forfeit = self._backend.capabilities.forfeit
            batch = [(delivery, _without_company(settlement, error, can_forfeit))]
        calls = [([work], secrets.token_hex(8)) for work in batch]
        while calls:
            calls = [(part, call_id) for part, call_id in calls if not self._settle(part, call_id)]

    def _all_ended(self, batch: list[Work]) -> bool:
        now = self._clock.boot()
        return all(now >= delivery.lease.expires_at for delivery, _ in batch)

    def _reap_forfeited(self, queues: set[str]) -> None:
        for queue in queues:
            self._try(lambda queue=queue: self._reap(queue))  # type: ignore[misc]

    # --- by the clock -------------------------------------------------------------------------------

    def _do_what_is_due(self) -> None:
        now = self._clock.mono()
        if now >= self._reap_at:
            self._reap_at = now + self.reap_every * random.uniform(0.8, 1.2)
            if self._forwarder.is_behind:  # what an outage has left
                self._try(self._forwarder.forward)
            self._try(self._reap_all, asks=not self._native_reap)
        if now >= self._count_at:
            self._count_at = now + self._count_every
            if not self._try(self._count):
                self._count_at = 0.0  # again after the pause: a good answer ends the cooldown of the fetches' breakers

    def _reap_all(self) -> None:
        """Each queue, whatever became of the others: they may be on different servers."""
        silent: BackendUnavailable | None = None
        for queue in self._queues:
            if self._halt.is_set() and not self._native_reap:
                return
            try:
                self._reap(queue)
            except BackendUnavailable as error:
                silent = error
        if silent is not None:
            raise silent

    def _reap(self, queue: str) -> None:
        reaped = self._backend.reap(queue, self._policy)
        self.reaped_at = self._clock.mono()
        if reaped:
            self._inbox.put(ReapDone(reaped))
            self._forwarder.died(reaped)
            self._forwarder.forward()

    def _count(self) -> None:
        stats: dict[str, QueueStats] = {queue: self._backend.stats(queue) for queue in self._queues}
        self._tell_charged()  # before the counts are told: the pool may stop because the last message has died
        self._inbox.put(Counted(stats))

    def _tell_charged(self) -> None:
        """What was charged to messages as they were fetched, where the broker frees leases itself."""
        if self._native_reap:
            self._try(self._reap_all, asks=False)

    def _try(self, call: Callable[[], None], *, asks: bool = True) -> bool:
        """Make a call that may be left out when the broker is silent: it comes round again. Whether it was answered.

        `asks`: it asks the broker, so that its end is an answer.
        """
        try:
            call()
        except BackendUnavailable as error:
            self._outage.failed(error)
            return False
        if asks:
            self._note_answer()
        return True

    def _note_answer(self) -> None:
        self.answered_at = self._clock.mono()
        self._outage.over()


def _without_company(settlement: Settlement, error: JobpoolError, can_forfeit: bool) -> Settlement:
    """What stands in for a settlement that is refused even alone. Raises `error` if it brings nothing along."""
    match settlement:
        case Ack(follow_ups=()) | Abandon(follow_ups=()):
            raise error
        case Abandon():
            logger.warning("a dead letter is not forwarded", extra={"fields": {"error": str(error)}})
            return replace(settlement, follow_ups=())
        case Move(crashes=crashes, cause=cause) if crashes and can_forfeit:
            logger.warning("a crashed message stays in its queue", extra={"fields": {"error": str(error)}})
            return Forfeit(cause or "")
        case _:
            return Abandon("unrecoverable", f"what its settlement sends on is refused by the broker: {error}")
