"""One turn of a scheduler: each schedule in order, each of its instants in order, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import once_id
from jobpool.cron.firing import Firing, FiringStatus, firing_key
from jobpool.cron.inline import Inline
from jobpool.cron.memory import Memory
from jobpool.cron.misfire import Due, decide
from jobpool.cron.records import Owner, Record
from jobpool.cron.scheduler import Planned
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.message.definition import JobDefinition, rfc3339

INSTANT_KEY = "scheduled_for"
"""The key of `meta` under which a job finds its instant, RFC 3339 in UTC; one of the job's own stays."""

ENQUEUED_AT_ONCE = 1000
"""Firings that are enqueued together: three or four round trips for all of them, and one transaction of some 50 ms."""

_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a turn. `grace`: seconds within which missed instants are made up for."""

    backend: QueueBackend
    memory: Memory
    inline: Inline
    owner: Owner
    grace: float
    environment: str | None

    def serves(self, planned: Planned) -> bool:
        """Return whether it is enabled, and meant for this environment."""
        return planned.why_not(self.environment) is None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A firing that waits to be enqueued with others."""

    planned: Planned
    due: Due
    definition: JobDefinition

    @property
    def at(self) -> datetime:
        return self.due.fire[0]

    @property
    def key(self) -> str:
        return firing_key(self.planned.name, self.at)


class Tick:
    """One turn.

    Args:
        means: The backend, the registry, the memory.
        clock: The time; a firing may be later than the turn's beginning.
        stopped: Tells if no more is to be fired.

    Attributes:
        now: When it began: instants due by then are fired.
        firings: The results of due instants.
    """

    def __init__(self, means: Means, clock: Callable[[], datetime], stopped: Callable[[], bool]) -> None:
        self._means = means
        self._memory = means.memory
        self._clock = clock
        self._stopped = stopped
        self._undecided: set[str] = set()
        self._silent: dict[str | None, str] = {}
        self._new: dict[str, Record] = {}
        self._batch: dict[str, Enqueued] = {}
        self.now = clock()
        self.firings: list[Firing] = []

    def attend(self, planned: Planned) -> None:
        """Do what one schedule asks for."""
        state = self._memory[planned]
        if state.seen is None:
            self._memory.note_seen(planned, self._beginning())
            if self._means.serves(planned):
                self._new[planned.name] = Record(self._beginning(), next=state.next)
        if state.next is None or state.next > self.now or self._stopped():
            return
        due = decide(planned.schedule, planned.misfire, last=state.seen, now=self.now, grace=self._means.grace)
        if not self._means.serves(planned):
            self._memory.note_seen(planned, due.last)
        elif (waits := self._may_wait(planned, due)) is not None:
            self._batch[planned.name] = waits
            if len(self._batch) >= ENQUEUED_AT_ONCE:
                self._flush()
        else:
            self._flush()
            if due.missed:
                self._miss(planned, due)
            self._fire_due(planned, due)

    def _beginning(self) -> datetime:
        """Return where a schedule begins that nobody has met: with the minute of this turn, even if it fires later
        on.
        """
        return self.now.replace(second=0, microsecond=0) - _MOMENT

    def end(self) -> None:
        """Enqueue what waits, and note where schedules begin that nobody has met before."""
        self._flush()
        self._memory.introduce(self._new)

    def _miss(self, planned: Planned, due: Due) -> None:
        newest, count = due.missed[-1], f"{len(due.missed)}{' or more' if due.more else ''}"
        why = f"{count} missed, the first at {rfc3339(due.missed[0])}"
        self.firings.append(Firing(planned.name, newest, FiringStatus.MISSED, self._late(newest), why=why))
        self._memory.note_seen(planned, newest)
        self._memory.tell({planned.name: Record(newest, next=self._memory[planned].next)})

    @property
    def silence(self) -> str:
        """Why the broker did not answer an enqueue; "" = it did."""
        return next(iter(self._silent.values()), "")

    # --- firing together ----------------------------------------------------------------------------

    def _may_wait(self, planned: Planned, due: Due) -> Enqueued | None:
        """Return the firing, if it is one that can be enqueued with others; None: it is dealt with by itself, in its
        order.

        Only where an enqueue that failed can be repeated without harm, piece by piece.
        """
        alone = len(due.fire) != 1 or due.missed or planned.is_inline or planned.definition.depends_on
        if alone or planned.definition.queue in self._silent or not self._means.backend.capabilities.key_store:
            return None
        try:
            return Enqueued(planned, due, for_instant(planned.entry.definition(), due.fire[0]))
        except JobpoolError:
            return None  # it is told, by itself

    def _flush(self) -> None:
        """Enqueue what waits: all at once, or where one of them is refused, one by one."""
        waiting, self._batch = list(self._batch.values()), {}
        if not waiting or self._stopped():
            return
        if len(waiting) > 1:
            try:
                self._enqueue_all(waiting)
                return
            except BackendUnavailable as error:
                self._silent |= {one.definition.queue: str(error) for one in waiting}
            except JobpoolError:
                pass  # one by one it is found out which
        for one in waiting:
            self._fire_due(one.planned, one.due)

    def _enqueue_all(self, waiting: Sequence[Enqueued]) -> None:
        ids = self._means.backend.enqueue_many_once([(one.definition, one.key) for one in waiting])
        won = self._memory.have_fired([one.key for one in waiting])
        records: dict[str, Record] = {}
        for one, ident, mine in zip(waiting, ids, won, strict=True):
            firing = self._enqueued(one.planned, one.definition, one.at, ident, mine)
            self.firings.append(firing)
            self._note_fired(one.planned, firing, records)
            self._memory.note_seen(one.planned, one.due.last)
        self._memory.tell(records)

    # --- firing -------------------------------------------------------------------------------------

    def _fire_due(self, planned: Planned, due: Due) -> None:
        if self._fire_all(planned, due):
            self._memory.note_seen(planned, due.last)

    def _fire_all(self, planned: Planned, due: Due) -> bool:
        """Fire in order; False: one is to be tried again, or left for later, and those after it wait."""
        since = self._memory[planned].seen or self._beginning()
        for at in due.fire:
            if self._stopped():
                return False
            firing = self._fire(planned, at, since)
            self.firings.append(firing)
            if firing.status is FiringStatus.LATER:
                self._undecided.add(planned.name)
                return False
            records: dict[str, Record] = {}
            self._note_fired(planned, firing, records)
            self._memory.tell(records)
        return True

    def _note_fired(self, planned: Planned, firing: Firing, records: dict[str, Record]) -> None:
        """Note that its instant was dealt with; the record of it, for others, is added to `records`."""
        self._memory.note_seen(planned, firing.at)
        self._new.pop(planned.name, None)
        if firing.status is not FiringStatus.ALREADY:
            self._memory[planned].ended = firing.at, firing.status is FiringStatus.FIRED
            records[planned.name] = self._record_of(planned, firing)

    def _fire(self, planned: Planned, at: datetime, since: datetime) -> Firing:
        key, queue = firing_key(planned.name, at), planned.definition.queue
        if queue in self._silent:  # each call that is made in vain takes as long as a call may
            return self._ended(planned, at, FiringStatus.LATER, why=self._silent[queue])
        try:
            if (held := self._held_back(planned, at, since)) is not None:
                return held
            definition = for_instant(planned.entry.definition(), at)
            fire = self._run if planned.is_inline else self._enqueue
            return fire(planned, definition, at, key)
        except BackendUnavailable as error:
            self._silent[queue] = str(error)
            return self._ended(planned, at, FiringStatus.LATER, why=str(error))
        except JobpoolError as error:
            return self._ended(planned, at, FiringStatus.FAILED, why=str(error))
        except Exception as error:  # noqa: BLE001 - of sync://, the job's own; and one failure never stops the rest
            return self._ended(planned, at, FiringStatus.FAILED, why=f"{type(error).__name__}: {error}")

    def _enqueue(self, planned: Planned, definition: JobDefinition, at: datetime, key: str) -> Firing:
        ident = self._means.backend.enqueue_once(definition, key)
        # After the enqueue: a note before it, and then a crash, would lose the firing.
        won = ident != once_id(key) or self._memory.have_fired([key])[0]
        return self._enqueued(planned, definition, at, ident, won)

    def _enqueued(self, planned: Planned, definition: JobDefinition, at: datetime, ident: str, won: bool) -> Firing:
        late = self._late(at)
        if ident != once_id(firing_key(planned.name, at)):
            why = f"message {ident} has its unique key {definition.idempotency_key!r}"
            return Firing(planned.name, at, FiringStatus.SKIPPED, late, why=why)
        return Firing(planned.name, at, FiringStatus.FIRED if won else FiringStatus.ALREADY, late, ident)

    def _run(self, planned: Planned, definition: JobDefinition, at: datetime, key: str) -> Firing:
        if not self._memory.may_run(key):
            return self._ended(planned, at, FiringStatus.ALREADY)
        late = self._late(at)
        return self._means.inline.fire(planned.name, replace(definition, identifier=once_id(key)), at, late)

    # --- dependents ---------------------------------------------------------------------------------

    def _held_back(self, planned: Planned, at: datetime, since: datetime) -> Firing | None:
        """Return why it may not fire, or not yet, because of what it depends on; None: it may."""
        for name in planned.definition.depends_on:
            on = self._memory.named(name)
            if not self._means.serves(on):
                continue
            if name in self._undecided:
                return self._ended(planned, at, FiringStatus.LATER, why=f"{name} has not fired yet")
            good = self._ended_well(on, since) if on.is_inline else True
            if good is None:
                why = f"{name} runs in another scheduler, and has not ended yet"
                return self._ended(planned, at, FiringStatus.LATER, why=why)
            if not good:
                return self._ended(planned, at, FiringStatus.SKIPPED, why=f"{name} failed")
        return None

    def _ended_well(self, on: Planned, since: datetime) -> bool | None:
        """Return how the newest run of an inline job ended that was due after `since`; None: not yet. True: none was
        due.
        """
        newest = on.schedule.between(since, self.now, most=1, newest=True)
        return self._memory.ended_well(on, newest[0]) if newest else True

    # --- notes --------------------------------------------------------------------------------------

    def _record_of(self, planned: Planned, firing: Firing) -> Record:
        coming = self._memory[planned].next
        if firing.status is not FiringStatus.FIRED and firing.took is None:
            return Record(firing.at, next=coming, failed=True)
        failed = firing.status is FiringStatus.FAILED
        late, owner = firing.lateness, self._means.owner
        return Record(firing.at, firing.at, self._clock(), late, owner, coming, firing.id, failed)

    def _ended(self, planned: Planned, at: datetime, status: FiringStatus, why: str | None = None) -> Firing:
        return Firing(planned.name, at, status, self._late(at), why=why)

    def _late(self, at: datetime) -> float:
        return max(0.0, (self._clock() - at).total_seconds())


def for_instant(definition: JobDefinition, at: datetime) -> JobDefinition:
    """Return the job as it is enqueued, knowing for which instant."""
    return definition.with_meta({INSTANT_KEY: rfc3339(at), **definition.meta})
