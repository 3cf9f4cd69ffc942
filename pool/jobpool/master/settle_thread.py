"""The settle thread: carries settlements to the backend in batches, enqueues for children, reaps and forwards the dead.

A batch is sent again, with the same call id, until the broker has answered or every lease in it has ended. So a lost
reply does no harm. Where queues are on different servers, other queues go on meanwhile. A broker that is full, or
draining, refuses to write some settlements. These are kept aside and tried again until their leases have ended, while
the rest goes on.

An accepted forfeit is reaped at once; otherwise each queue is reaped every third of the ttl. A broker that frees leases
itself (`Leases.BROKER`) is asked with each count, and at the end, what it charged to messages as they were fetched.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Leases, ReapPolicy
from jobpool.errors import OUTAGES, AccessRefused, BackendUnavailable, InvalidJob, JobpoolError, WriteRefused
from jobpool.ipc.frames import Ask, Reply
from jobpool.master.dead_letter_jobs import DeadLetterJobs
from jobpool.master.events import Answered, Counted, Event, FollowUpsRefused, GivenUp, Produced, ReapDone
from jobpool.master.inbox import Inbox
from jobpool.master.slots import Delivery
from jobpool.master.threads import MAX_PAUSE_S, MasterThread
from jobpool.message.dead_letters import ON_DEATH
from jobpool.message.definition import SentJobs
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Settled, Settlement, brings

Work = tuple[Delivery, Settlement]

MAX_SETTLEMENTS_A_CALL = 500  # a transaction of some 10 ms at most, so that no producer waits long behind it
COUNT_EVERY_S = 3.0  # seconds between two looks at the counts of the queues
MIN_RETRY_PAUSE_S = 0.05  # between two tries of refused settlements; doubles with each, up to `MAX_PAUSE_S`
CALM_S = 10.0  # without a refusal, after which an outage is over though what was refused was only given up, not settled
SETTLE, REFUSED, REAP, COUNT, PING = "settle", "refused", "reap", "count", "ping"  # kinds of calls, for `BrokerRetry`
logger = logging.getLogger("jobpool.pool")


@dataclass(slots=True)
class _OpenCall:
    """A queue's call that was not answered yet, and the work of this queue that came later."""

    work: list[Work]
    call_id: str
    behind: list[Work] = field(default_factory=list)


class SettleThread(MasterThread):
    """The thread that settles, reaps and counts. `answered_at`, `reaped_at`: CLOCK_MONOTONIC of the last good ones."""

    def __init__(
        self,
        backend: QueueBackend,
        queues: tuple[str, ...],
        ttl: float,
        policy: ReapPolicy,
        inbox: Inbox,
        count_every: float,
        dead_letter_queue: str | None = None,
        survey: Callable[[Sequence[str]], Event] | None = None,
        *,
        until_empty: bool = False,
    ) -> None:
        super().__init__("settle", inbox)
        self._backend = backend
        self._native_reap = backend.capabilities.leases is not Leases.OURS
        self._in_one = backend.capabilities.atomic_across_queues
        self._queues = self._surveyed = queues
        self._policy, self._survey = policy, survey
        self._clock = backend.clock
        self._wake = threading.Condition()
        self._work: deque[Work] = deque()
        self._asked: list[tuple[int, Ask, SentJobs]] = []
        self._open: dict[str, _OpenCall] = {}  # by queue, if these may be on different servers; the next to try first
        self._refused: list[Work] = []
        self._retry_at, self._retry_pause, self._calm_at = math.inf, 0.0, math.inf
        self._dead_letters = DeadLetterJobs(backend, dead_letter_queue)
        self._ttl, self.reap_every, self._count_every = ttl, ttl / 3, count_every
        self._reap_at = self._count_at = 0.0
        self._reap_failed = False
        self._until_empty, self._left = until_empty, math.inf  # of the jobs that the last count saw
        self.answered_at = self.reaped_at = self._clock.mono()

    def settle(self, work: list[Work]) -> None:
        """Hand over decided settlements; the answers come back as `Answered`."""
        with self._wake:
            self._work.extend(work)
            self._wake.notify()

    def serve_queues(self, queues: Iterable[str]) -> None:
        """Reap and count these queues from now on, and look round for jobs that nothing serves."""
        self._queues = (*queues,)
        with self._wake:
            self._reap_at = self._count_at = 0.0
            self._wake.notify()

    def notify_hooks(self, closed: frozenset[str] | None) -> None:
        """Tell the app's `on_death` hooks of deaths in all queues but these; None = the app has no hooks."""
        self._dead_letters.closed_to_hooks = closed
        if closed is not None:
            with self._wake:
                self._reap_at = 0.0  # it looks at once for deaths of before
                self._wake.notify()

    def produce(self, child: int, ask: Ask, jobs: SentJobs) -> None:
        """Enqueue for a child; the answer comes back as `Produced`."""
        with self._wake:
            self._asked.append((child, ask, jobs))
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
            for child, ask, jobs in asked:
                self._inbox.put(produce(self._backend, child, ask, jobs))
            if self._open:
                self._settle_open()
            if self._refused and (self._halt.is_set() or self._clock.mono() >= self._retry_at):
                self._settle_refused()
            if not self._halt.is_set():
                self._do_what_is_due()
            elif not (batch or asked or self._open or self._work):
                self._tell_charged()
                return

    def _next(self) -> tuple[list[Work], list[tuple[int, Ask, SentJobs]]]:
        with self._wake:
            if not (self._work or self._asked or self._open or self._halt.is_set()):
                due = min(self._reap_at, self._count_at, self._retry_at) - self._clock.mono()
                self._wake.wait(max(0.0, due))
            batch = [self._work.popleft() for _ in range(min(len(self._work), MAX_SETTLEMENTS_A_CALL))]
            asked, self._asked = self._asked, []
            return batch, asked

    def _settle_all(self, batch: list[Work]) -> None:
        """Settle most in one call; an ack that the handler may have made itself in one of its own, under its owner.

        Where queues are on different servers, each queue's by itself: a silent one must not hold up the others.
        """
        alone = [(d, s) for d, s in batch if d.acks_itself and type(s) is Ack]
        together = [(d, s) for d, s in batch if not (d.acks_itself and type(s) is Ack)] if alone else batch
        parts = {"": together} if self._in_one and together else {}
        for work in () if self._in_one else together:
            parts.setdefault(work[0].lease.queue, []).append(work)
        self._call_each(parts.values(), [([(d, s)], f"ack:{d.lease.owner_token}") for d, s in alone])

    def _call_each(self, parts: Iterable[list[Work]], named: Sequence[tuple[list[Work], str]] = ()) -> None:
        """Settle each part, and those that have a call id already, by calls that are repeated until they are over.

        Where queues are on different servers, each once: `_settle_open` repeats those that are not over.
        """
        calls = [*((part, secrets.token_hex(8)) for part in parts), *named]
        while calls and self._in_one:
            calls = [(part, call_id) for part, call_id in calls if not self._settle(part, call_id)]
        for part, call_id in calls:
            queue = part[0][0].lease.queue
            if queue in self._open:
                self._open[queue].behind += part
            elif not self._settle(part, call_id):
                self._open[queue] = _OpenCall(part, call_id)

    def _settle_open(self) -> None:
        """Repeat one call that was not answered: new work of other queues waits for one silent server at a time."""
        queue = next(iter(self._open))
        call = self._open.pop(queue)
        if self._settle(call.work, call.call_id):
            self.settle(call.behind)
        else:
            self._open[queue] = call

    def _settle(self, batch: list[Work], call_id: str) -> bool:
        """Settle; return whether it is over: answered, or too late. Else call again with the same id."""
        pairs = [(delivery.lease, settlement) for delivery, settlement in batch]
        asked_at = self._clock.mono()
        try:
            answers = self._backend.settle_many(pairs, call_id)
        except WriteRefused as error:
            self._set_aside(batch, error, asked_at)
            return True
        except OUTAGES as error:
            return self._wait_out(batch, error)
        except JobpoolError as error:
            self._settle_halves(batch, error)
            return True
        self._note_answered(batch, answers, asked_at)
        return True

    def _note_answered(self, batch: list[Work], answers: Sequence[Settled], asked_at: float) -> None:
        now = self._clock.mono()
        if any(answers):  # a refusal alone may come without a question to the broker
            self.answered_at = now
            self._broker_retry.answered(self._kind(batch[0][0].lease.queue))
        self._inbox.put(Answered([(d, s, a) for (d, s), a in zip(batch, answers, strict=True)], now - asked_at))
        self._left -= len(batch)
        if self._until_empty and self._left <= 0:
            self._count_at = 0.0  # nothing may be left: the pool need not wait for the next turn to hear of it
        for queue in {d.lease.queue for d, s in batch if isinstance(s, Forfeit)}:
            self._try(partial(self._reap, queue), REAP)

    def _wait_out(self, batch: list[Work], error: BackendUnavailable | AccessRefused) -> bool:
        """Return whether it is over: too late, or what is refused is only what some of them bring along."""
        if self._clock.boot() >= max(delivery.lease.expires_at for delivery, _ in batch):
            self._inbox.put(GivenUp([delivery for delivery, _ in batch]))
            return True
        bringing = [d for d, s in batch if brings(s)] if isinstance(error, AccessRefused) else []
        if bringing and self._is_let_in(bringing):
            if all(delivery.refused_at for delivery in bringing):
                self._settle_halves(batch, error)
                return True
            for delivery in bringing:  # once more: the refusal may have ended just now
                delivery.refused_at = self._clock.mono()
            return False
        self._broker_retry.failed(error, self._kind(batch[0][0].lease.queue), holding=True)
        return False

    def _kind(self, queue: str) -> str:
        """Return the kind of a call that settles, for `BrokerRetry`: each server's outage is one by itself."""
        return SETTLE if self._in_one else f"{SETTLE}:{queue}"

    def _is_let_in(self, deliveries: list[Delivery]) -> bool:
        """Return whether the broker takes writes to their own queues."""
        try:
            self._backend.renew_many([delivery.lease for delivery in deliveries], self._ttl)
            return True
        except OUTAGES:
            return False

    def _settle_halves(self, batch: list[Work], error: JobpoolError) -> None:
        """Settle each half: what one brings along is refused, such as a job for a queue that is not there.

        The one that is refused alone is given up without it: no job may end the pool, or hold up the others forever.
        An attempt has failed then, which the loop decides about.
        """
        if len(batch) == 1:
            [(delivery, settlement)] = batch
            if type(settlement) is Ack and settlement.follow_ups:
                self._inbox.put(FollowUpsRefused(delivery, str(error)))
                return
            batch = [(delivery, _without_company(settlement, error))]
        half = len(batch) // 2
        self._call_each(filter(None, (batch[:half], batch[half:])))

    def _set_aside(self, batch: list[Work], error: WriteRefused, asked_at: float) -> None:
        """Keep what was refused for later. Where the whole call was, an ack of it may still be done by itself."""
        refused = batch
        if error.answers:
            told = [(work, answer) for work, answer in zip(batch, error.answers, strict=True) if answer is not None]
            refused = [work for work, answer in zip(batch, error.answers, strict=True) if answer is None]
            if told:
                self._note_answered([work for work, _ in told], [answer for _, answer in told], asked_at)
        else:
            acks: list[Work] = [(d, s) for d, s in batch if type(s) is Ack and not s.follow_ups]
            rest = [(d, s) for d, s in batch if type(s) is not Ack or s.follow_ups]
            if acks and rest:
                self._call_each([acks, rest])
                return
        now = self._clock.mono()
        for delivery, _ in refused:
            delivery.refused_at = delivery.refused_at or now
        self._refused += refused
        self._retry_at = min(self._retry_at, now + max(self._retry_pause, MIN_RETRY_PAUSE_S))
        self._calm_at = now + CALM_S
        self._broker_retry.report(error, REFUSED)

    def _settle_refused(self) -> None:
        """Try the kept settlements again, and keep those that are refused once more."""
        self._retry_pause = min(MAX_PAUSE_S, 2 * self._retry_pause or MIN_RETRY_PAUSE_S)
        self._retry_at = math.inf
        work, self._refused = self._refused, []
        live = self._live(work)
        self._settle_all(live)
        if not self._refused:
            self._retry_pause = 0.0
            if live and not self._open:  # else all were given up, or wait, which tells nothing about the broker
                self._end_refusal()

    def _end_refusal(self) -> None:
        self._calm_at = math.inf
        self._broker_retry.answered(REFUSED)

    def _live(self, batch: list[Work]) -> list[Work]:
        """Return those whose leases run; the others are given up."""
        now = self._clock.boot()
        ended = [delivery for delivery, _ in batch if now >= delivery.lease.expires_at]
        if ended:
            self._inbox.put(GivenUp(ended))
        return [(d, s) for d, s in batch if now < d.lease.expires_at] if ended else batch

    def _do_what_is_due(self) -> None:
        now = self._clock.mono()
        if now >= self._calm_at and not self._refused:
            self._end_refusal()
        if now >= self._reap_at:
            self._reap_at = now + self.reap_every * random.uniform(0.8, 1.2)
            if self._dead_letters.is_due(self._queues):
                self._try(partial(self._dead_letters.forward, self._queues), REAP)
            kind = REAP if self._queues else PING
            self._reap_failed = not self._try(self._reap_all, kind, asks=not self._native_reap)
        if now >= self._count_at:
            self._count_at = now + self._count_every
            settles = map(self._kind, self._queues)
            kinds = (COUNT, *settles, PING) if self._queues else (PING,)  # which tells nothing of rights
            if not self._try(self._count, *kinds):
                self._count_at = 0.0  # again after the pause: a good answer ends the cooldown of the fetches' breakers
            elif self._reap_failed:
                self._reap_at = 0.0  # the broker is back: the outage is over with the next reap

    def _reap_all(self) -> None:
        """Reap each queue even if another has failed, for they may be on different servers."""
        silent: BackendUnavailable | AccessRefused | None = None
        for queue in self._queues:
            if self._halt.is_set() and not self._native_reap:
                return
            try:
                self._reap(queue)
            except OUTAGES as error:
                silent = error
        if silent is not None:
            raise silent

    def _reap(self, queue: str) -> None:
        reaped = self._backend.reap(queue, self._policy)
        self.reaped_at = self._clock.mono()
        if reaped:
            self._inbox.put(ReapDone(reaped))
            self._dead_letters.died(reaped)
            self._dead_letters.forward(self._queues)

    def _count(self) -> None:
        queues = self._queues
        stats = {queue: self._backend.stats(queue) for queue in queues}
        self._left = sum(counts.pending for counts in stats.values())
        if not queues:  # the app is being imported, and there is nothing to reap
            self._backend.ping()
            self.reaped_at = self._clock.mono()
        if self._survey and queues is not self._surveyed:
            self._inbox.put(self._survey(queues))
            self._surveyed = queues
        self._tell_charged()  # before the counts are told: the pool may stop because the last message has died
        self._inbox.put(Counted(stats))

    def _tell_charged(self) -> None:
        """Tell what was charged to messages as they were fetched, where the broker frees leases itself."""
        if self._native_reap:
            self._try(self._reap_all, REAP, asks=False)

    def _try(self, call: Callable[[], None], *kinds: str, asks: bool = True) -> bool:
        """Make a call that may fail while the broker is silent, for it is made again. Return whether it was answered.

        The call is of the first of `kinds`; an answer ends the outage of the others, too. `asks`: it asks the broker.
        """
        try:
            call()
        except OUTAGES as error:
            self._broker_retry.failed(error, kinds[0])
            return False
        if asks:
            self.answered_at = self._clock.mono()
        self._broker_retry.answered(*kinds)
        return True


def _without_company(settlement: Settlement, error: JobpoolError) -> Settlement:
    """Return the stand-in for a settlement that is refused even alone. Raise `error` if it brings nothing along."""
    match settlement:
        case Abandon(error=told, follow_ups=()) if isinstance(error, InvalidJob) and told != str(error):
            logger.warning("a dead letter is kept without its error", extra={"fields": {"error": str(error)}})
            return replace(settlement, error=str(error), cause=None)
        case Ack(follow_ups=()) | Abandon(follow_ups=()):
            raise error
        case Abandon(follow_ups=follow_ups):
            logger.warning("a dead letter is not forwarded", extra={"fields": {"error": str(error)}})
            hooks = tuple(job for job in follow_ups if job.handler == ON_DEATH)  # in its own queue, unlike copies
            return replace(settlement, follow_ups=hooks if len(hooks) < len(follow_ups) else ())
        case Move(crashes=crashes, cause=cause) if crashes:
            logger.warning("a crashed message stays in its queue", extra={"fields": {"error": str(error)}})
            return Forfeit(cause or "")
        case _:
            return Abandon("unrecoverable", f"what its settlement sends on is refused by the broker: {error}")


def produce(backend: QueueBackend, child: int, ask: Ask, jobs: SentJobs) -> Produced:
    """Carry it out; an error is part of the answer. With `ask.pack` there is no I/O, else one call of the backend.

    Nothing waits here for members that run to be cancelled: this thread settles them.
    """
    try:
        if ask.batch is not None:
            return Produced(child, Reply([], batch=backend.call_batch(ask.batch, [*jobs], cancel_wait=0.0)))
        if not ask.pack:
            return Produced(child, Reply(backend.enqueue_many(jobs)))
        packed = [backend.pack(job) for job in jobs]
        return Produced(child, Reply([message.id for message in packed], packed=[m.to_dict() for m in packed]))
    except (JobpoolError, TypeError, KeyError, ValueError) as error:
        return Produced(child, Reply([], type(error).__name__, str(error)))
