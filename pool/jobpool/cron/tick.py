"""One turn of a scheduler: each schedule in order, each of its instants in order, and what becomes of them."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice

from msgspec import Struct, field, structs

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import once_id
from jobpool.client.worker import JobFailedError, run_inline
from jobpool.cron.firing import MOMENT, Due, Firing, FiringStatus, decide, firing_key
from jobpool.cron.records import REREAD_AFTER_S, Owner, Record, ScheduleStates
from jobpool.cron.scheduler import Planned
from jobpool.errors import OUTAGES, BackendUnavailable, JobpoolError
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.capped_text import cap_text
from jobpool.message.definition import JobDefinition, rfc3339
from jobpool.message.printable import headline

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # signals that end a scheduler
INSTANT_KEY = "scheduled_for"
"""The key of `meta` under which a job finds its instant, RFC 3339 in UTC; one of the job's own stays."""

MAX_STACK_BYTES = 6 * 1024
"""Bytes of a failed run's traceback that are logged: a pool reads 16 KiB a line from the scheduler beside it."""

Waiting = tuple[Planned, Due, list[tuple[JobDefinition, str]]]  # firings that wait to be enqueued with others; keys
ENQUEUED_AT_ONCE = 1000
"""Firings that are enqueued together: five or six round trips for all of them, and one transaction of some 50 ms."""


log = logging.getLogger("jobpool.cron")


class FiringContext(Struct, frozen=True):
    """The context of a turn."""

    backend: QueueBackend
    states: ScheduleStates
    registry: HandlerRegistry  # of inline jobs; they have no queue, so its lists of handlers by queue do not count
    default_timeout: float  # seconds, of inline jobs; 0 = unlimited
    owner: Owner
    grace: float  # seconds within which missed instants are made up for
    environment: str | None
    on_inline: Callable[[str], object]  # called with the name of a schedule before its job runs here
    late: list[tuple[str, Sequence[JobDefinition]]] = field(default_factory=list)
    """Names of schedules, and the follow-ups of their inline jobs that the broker has not taken yet."""

    def serves(self, planned: Planned) -> bool:
        """Return whether it is enabled, and meant for this environment."""
        return planned.why_not(self.environment) is None

    def run_inline(self, name: str, definition: JobDefinition, at: datetime, lateness: float) -> Firing:
        """Run the job of schedule `name` in this process: one attempt, under the alarm. Blocks for the handler.

        Never raises a handler's errors; `InvalidJob` for the job's own.
        """
        self.on_inline(name)
        try:
            with _signals_kept():
                attempt = run_inline(definition, self.registry.with_rules(queue_handlers={}), self.default_timeout)
            result, follow_ups = attempt.result, attempt.follow_ups
        except JobFailedError as failed:
            result, follow_ups = failed.result, ()
        took, error = result.duration_seconds(), result.error or "failed"
        fired = Firing(name, at, FiringStatus.FIRED, lateness, took=took, output=result.output)
        if not result.success:
            stack = cap_text(error, MAX_STACK_BYTES) if "\n" in error else None
            return structs.replace(fired, status=FiringStatus.FAILED, why=headline(error), stack=stack)
        try:
            self.backend.enqueue_many(follow_ups)
        except JobpoolError as error:
            if isinstance(error, OUTAGES):
                self.late.append((name, follow_ups))
            return structs.replace(fired, status=FiringStatus.FAILED, why=f"its follow-ups are not enqueued: {error}")
        return fired

    def enqueue_late(self) -> None:
        """Enqueue the follow-ups that the broker did not take before. Raises one of `OUTAGES`: not yet all."""
        while self.late:
            name, follow_ups = self.late[0]
            fields = {"schedule": name, "jobs": len(follow_ups)}
            try:
                self.backend.enqueue_many(follow_ups)
                log.info("follow-ups are enqueued", extra={"fields": fields})
            except OUTAGES:
                raise
            except JobpoolError as error:
                log.error("follow-ups are not enqueued", extra={"fields": fields | {"error": str(error)}})
            del self.late[0]


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the effect of `SIGNALS` after the block, whatever its code has set."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # set by C code, which Python cannot put back
                signal.signal(number, handler)


class Tick:
    """One turn. `now`: when it began; instants due by then are fired, by `clock` maybe later. `firings`: their results.

    `stopped` tells if no more is to be fired.
    """

    def __init__(self, context: FiringContext, clock: Callable[[], datetime], stopped: Callable[[], bool]) -> None:
        self._context = context
        self._states = context.states
        self._clock = clock
        self._stopped = stopped
        self._undecided: set[str] = set()
        self._new: dict[str, Record] = {}
        self._batch: list[Waiting] = []
        self._batched = 0  # firings in it
        self.now = clock()
        self._read_at: datetime | None = self.now  # None: what others have done could not be read again
        # Where a schedule begins that nobody has met: with the minute of this turn, even if it fires later.
        self._beginning = self.now.replace(second=0, microsecond=0) - MOMENT
        self.firings: list[Firing] = []
        self.silent: dict[str | None, str] = {}  # why the broker did not take the enqueues of a queue

    def run(self, plan: Iterable[Planned]) -> None:
        """Do what the schedules ask for, in order, and note where those begin that nobody has met before."""
        try:
            self._context.enqueue_late()
        except OUTAGES as error:
            self.silent[None] = str(error)  # so that no inline job runs before them
        for planned in plan:
            self._attend(planned)
        self._flush()
        self._states.publish(self._new)

    def _attend(self, planned: Planned) -> None:
        state = self._states[planned]
        if state.seen is None:
            self._states.note_seen(planned, self._beginning)
            if self._context.serves(planned):
                self._new[planned.name] = Record(self._beginning, next=state.next)
        if not (self._is_due(planned) and self._is_fresh()):
            return
        if not self._is_due(planned) or self._stopped():  # others may have fired it meanwhile
            return
        due = decide(planned.schedule, planned.misfire, last=state.seen, now=self.now, grace=self._context.grace)
        if not self._context.serves(planned):
            self._states.note_seen(planned, due.last)
        elif (waits := self._may_wait(planned, due)) is not None:
            self._batch.append(waits)
            self._batched += len(due.fire)
            if self._batched >= ENQUEUED_AT_ONCE:
                self._flush()
        else:
            self._flush()
            self._fire_due(planned, due)

    def _is_due(self, planned: Planned) -> bool:
        due = self._states[planned].next
        return due is not None and due <= self.now

    def _is_fresh(self) -> bool:
        """Read again what others have done, where a job that ran here took long: they may have fired what is due.

        False: the broker is silent or refuses, and what is left of this turn is left to the next one.
        """
        if self._read_at is None:
            return False
        now = self._clock()
        if (now - self._read_at).total_seconds() > REREAD_AFTER_S:
            try:
                self._states.read(now)
                self._read_at = now
            except OUTAGES as error:
                self.silent[None], self._read_at = str(error), None
        return self._read_at is not None

    def _may_wait(self, planned: Planned, due: Due) -> Waiting | None:
        """Return the firings, if they can be enqueued with others; None: they are dealt with by themselves, in order.

        Only where an enqueue that failed can be repeated without harm, piece by piece.
        """
        alone = not due.fire or planned.is_inline or planned.definition.depends_on
        if alone or planned.definition.queue in self.silent or not self._context.backend.capabilities.key_store:
            return None
        try:
            jobs = [(for_instant(planned.entry.definition(), at), firing_key(planned.name, at)) for at in due.fire]
            return planned, due, jobs
        except JobpoolError:
            return None  # it is told, by itself

    def _flush(self) -> None:
        """Enqueue what waits: all at once, or where one of them is refused, one by one."""
        waiting, self._batch, self._batched = self._batch, [], 0
        if not waiting or self._stopped():
            return
        try:
            self._enqueue_all(waiting)
            return
        except BackendUnavailable as error:
            self.silent |= {planned.definition.queue: str(error) for planned, _, _ in waiting}
        except JobpoolError:
            pass  # one by one it is found out which
        for planned, due, _ in waiting:
            self._fire_due(planned, due)

    def _enqueue_all(self, waiting: Sequence[Waiting]) -> None:
        asked = [(planned, at, *job) for planned, due, jobs in waiting for at, job in zip(due.fire, jobs, strict=True)]
        firings = iter(self._enqueue(asked))
        records: dict[str, Record] = {}
        for planned, due, jobs in waiting:
            self._note_missed(planned, due)
            for firing in islice(firings, len(jobs)):
                self.firings.append(firing)
                records |= self._note_fired(planned, firing)
            self._states.note_seen(planned, due.last)
        self._states.publish(records)

    def _enqueue(self, asked: Sequence[tuple[Planned, datetime, JobDefinition, str]]) -> list[Firing]:
        """Enqueue the jobs of these instants, all or none, each with its key. Raises as `enqueue_many_once`."""
        may = self._states.may_enqueue([key for *_, key in asked])
        jobs = [(definition, key) for (_, _, definition, key), mine in zip(asked, may, strict=True) if mine]
        ids = {key: ident for (_, key), ident in zip(jobs, self._context.backend.enqueue_many_once(jobs), strict=True)}
        ours = [key for key, ident in ids.items() if ident == once_id(key)]
        first = dict(zip(ours, self._states.is_first(ours), strict=True))
        firings = []
        for planned, at, definition, key in asked:
            status, why, ident = FiringStatus.ALREADY, None, ids.get(key)
            if ident and key not in first:
                why = taken(definition, ident)
                status, ident = FiringStatus.SKIPPED, None
            elif first.get(key):
                status = FiringStatus.FIRED
            firings.append(self._firing(planned, at, status, why, ident))
        return firings

    def _fire_due(self, planned: Planned, due: Due) -> None:
        """Fire in order. After one that is to be tried again, or left for later, the others wait."""
        self._note_missed(planned, due)
        since = self._states[planned].seen or self._beginning
        for at in due.fire:
            if self._stopped():
                return
            firing = self._fire(planned, at, since)
            self.firings.append(firing)
            if firing.status is FiringStatus.LATER:
                self._undecided.add(planned.name)
                return
            self._states.publish(self._note_fired(planned, firing))
        self._states.note_seen(planned, due.last)

    def _note_missed(self, planned: Planned, due: Due) -> None:
        """Note the instants that nothing makes up for; their record is that of the firing after them, if there is one.

        Else it is told with the end of the turn.
        """
        if due.missed:
            newest, count = due.missed[-1], len(due.missed)
            first = f"more than {count} missed, the first before" if due.more else f"{count} missed, the first at"
            why = f"{first} {rfc3339(due.missed[0])}"
            self.firings.append(self._firing(planned, newest, FiringStatus.MISSED, why))
            self._states.note_seen(planned, newest)
            self._new[planned.name] = Record(newest, next=self._states[planned].next)

    def _note_fired(self, planned: Planned, firing: Firing) -> dict[str, Record]:
        """Note that its instant was dealt with, and return the record of it for others, if there is one."""
        self._states.note_seen(planned, firing.at)
        self._new.pop(planned.name, None)
        if firing.status is FiringStatus.ALREADY:
            self._states.note_lost(planned, firing.at)
            return {}
        state, at = self._states[planned], firing.at
        failed = firing.status is not FiringStatus.FIRED
        state.ended = at, not failed
        if failed and firing.took is None:
            return {planned.name: Record(at, next=state.next, failed=True)}
        late, owner = firing.lateness, self._context.owner
        return {planned.name: Record(at, at, self._clock(), late, owner, state.next, firing.id, failed)}

    def _fire(self, planned: Planned, at: datetime, since: datetime) -> Firing:
        key, queue = firing_key(planned.name, at), planned.definition.queue
        if queue in self.silent:  # each call that is made in vain takes as long as a call may
            return self._firing(planned, at, FiringStatus.LATER, self.silent[queue])
        try:
            if (held := self._held_back(planned, at, since)) is not None:
                return held
            definition = for_instant(planned.entry.definition(), at)
            if not planned.is_inline:
                return self._enqueue([(planned, at, definition, key)])[0]
            if not self._states.may_run(key):
                return self._firing(planned, at, FiringStatus.ALREADY)
            definition = replace(definition, identifier=once_id(key))
            return self._context.run_inline(planned.name, definition, at, self._late(at))
        except OUTAGES as error:
            self.silent[queue] = str(error)
            return self._firing(planned, at, FiringStatus.LATER, str(error))
        except JobpoolError as error:
            return self._firing(planned, at, FiringStatus.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - of sync://, the job's own; and one failure never stops the rest
            return self._firing(planned, at, FiringStatus.FAILED, f"{type(error).__name__}: {error}")

    def _held_back(self, planned: Planned, at: datetime, since: datetime) -> Firing | None:
        """Return why it may not fire, or not yet, because of what it depends on; None: it may."""
        for name in planned.definition.depends_on:
            on = self._states.planned[name]
            if not self._context.serves(on):
                continue
            if name in self._undecided:
                return self._firing(planned, at, FiringStatus.LATER, f"{name} has not fired yet")
            # Of an inline job, its newest run that was due after `since` counts, if there was one.
            newest = on.schedule.between(since, self.now, most=1) if on.is_inline else []
            good = self._states.ended_well(on, newest[0]) if newest else True
            if good is None:
                why = f"{name} runs in another scheduler, and has not ended yet"
                return self._firing(planned, at, FiringStatus.LATER, why)
            if not good:
                return self._firing(planned, at, FiringStatus.SKIPPED, f"{name} failed")
        return None

    def _firing(
        self, planned: Planned, at: datetime, status: FiringStatus, why: str | None = None, ident: str | None = None
    ) -> Firing:
        return Firing(planned.name, at, status, self._late(at), ident, why=why)

    def _late(self, at: datetime) -> float:
        return max(0.0, (self._clock() - at).total_seconds())


def taken(definition: JobDefinition, ident: str) -> str:
    """Say why a unique job was not enqueued."""
    return f"message {ident} has its unique key {definition.idempotency_key!r}"


def for_instant(definition: JobDefinition, at: datetime) -> JobDefinition:
    """Return the job as it is enqueued, knowing for which instant, and so do those that come after it in a chain."""
    told = definition.with_meta({INSTANT_KEY: rfc3339(at), **definition.meta})
    return told.with_then([for_instant(job, at) for job in told.then]) if told.then else told
