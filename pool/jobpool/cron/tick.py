"""One turn of a scheduler: each schedule in order, each of its instants in order, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from jobpool.backend import QueueBackend, once_id
from jobpool.cron.firing import Firing, FiringStatus, firing_key
from jobpool.cron.inline import Inline
from jobpool.cron.memory import Memory
from jobpool.cron.misfire import Due, decide
from jobpool.cron.records import Owner, Record
from jobpool.cron.scheduler import Planned
from jobpool.definition import JobDefinition, rfc3339
from jobpool.errors import BackendUnavailable, JobpoolError

INSTANT_KEY = "scheduled_for"
"""The key of `meta` under which a job finds its instant, RFC 3339 in UTC; one of the job's own stays."""

_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Means:
    """What a turn works with. `grace`: seconds within which what was missed is made up for."""

    backend: QueueBackend
    memory: Memory
    inline: Inline
    owner: Owner
    grace: float
    environment: str | None

    def serves(self, planned: Planned) -> bool:
        """Whether it is enabled, and meant for this environment."""
        return planned.why_not(self.environment) is None


class Tick:
    """One turn.

    Args:
        means: What it works with.
        clock: What time it is; a firing may be later than the turn's beginning.
        stopped: Whether nothing more is to be fired.

    Attributes:
        now: When it began: what is due by then is fired.
        firings: What became of what was due.
    """

    def __init__(self, means: Means, clock: Callable[[], datetime], stopped: Callable[[], bool]) -> None:
        self._means = means
        self._memory = means.memory
        self._clock = clock
        self._stopped = stopped
        self._undecided: set[str] = set()
        self._silent: dict[str | None, str] = {}
        self._new: dict[str, Record] = {}
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
            return
        if due.missed:
            self._miss(planned, due)
        if self._fire_all(planned, due):
            self._memory.note_seen(planned, due.last)

    def _beginning(self) -> datetime:
        """Where a schedule begins that nobody has met: with the minute of this turn, even if it fires later on."""
        return self.now.replace(second=0, microsecond=0) - _MOMENT

    def end(self) -> None:
        """Note where schedules begin that nobody has met before."""
        self._memory.introduce(self._new)

    def _miss(self, planned: Planned, due: Due) -> None:
        newest, count = due.missed[-1], f"{len(due.missed)}{' or more' if due.more else ''}"
        why = f"{count} missed, the first at {rfc3339(due.missed[0])}"
        self.firings.append(Firing(planned.name, newest, FiringStatus.MISSED, self._late(newest), why=why))
        self._memory.note_seen(planned, newest)
        self._memory.tell(planned, Record(newest, next=self._memory[planned].next))

    @property
    def silence(self) -> str:
        """Why the broker did not answer an enqueue; "" = it did."""
        return next(iter(self._silent.values()), "")

    # --- firing -------------------------------------------------------------------------------------

    def _fire_all(self, planned: Planned, due: Due) -> bool:
        """Fire in order; False: one is to be tried again, or left for later, and those behind it wait."""
        since = self._memory[planned].seen or self._beginning()
        for at in due.fire:
            if self._stopped():
                return False
            firing = self._fire(planned, at, since)
            self.firings.append(firing)
            if firing.status is FiringStatus.LATER:
                self._undecided.add(planned.name)
                return False
            self._memory.note_seen(planned, at)
            self._new.pop(planned.name, None)
            if firing.status is not FiringStatus.ALREADY:
                self._memory[planned].ended = at, firing.status is FiringStatus.FIRED
                self._memory.tell(planned, self._record_of(planned, firing))
        return True

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
        late = self._late(at)
        if ident != once_id(key):
            why = f"message {ident} has its unique key {definition.idempotency_key!r}"
            return Firing(planned.name, at, FiringStatus.SKIPPED, late, why=why)
        won = self._memory.has_fired(key)  # behind the enqueue: who says so and dies before it would lose the firing
        return Firing(planned.name, at, FiringStatus.FIRED if won else FiringStatus.ALREADY, late, ident)

    def _run(self, planned: Planned, definition: JobDefinition, at: datetime, key: str) -> Firing:
        if not self._memory.may_run(key):
            return self._ended(planned, at, FiringStatus.ALREADY)
        late = self._late(at)
        return run_inline(self._means.inline, planned, replace(definition, identifier=once_id(key)), at, late)

    # --- dependents ---------------------------------------------------------------------------------

    def _held_back(self, planned: Planned, at: datetime, since: datetime) -> Firing | None:
        """Why it may not fire, or not yet, because of what it depends on; None: it may."""
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
        """How the newest run of an inline job ended that was due behind `since`; None: not yet. True: none was due."""
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


def run_inline(inline: Inline, planned: Planned, definition: JobDefinition, at: datetime, lateness: float) -> Firing:
    """One attempt of a job without a queue."""
    result, why = inline.run(definition)
    took = result.duration_seconds() if result else None
    status = FiringStatus.FIRED if why is None else FiringStatus.FAILED
    return Firing(planned.name, at, status, lateness, why=why, took=took)


def for_instant(definition: JobDefinition, at: datetime) -> JobDefinition:
    """The job as it is enqueued, knowing for which instant."""
    return definition.with_meta({INSTANT_KEY: rfc3339(at), **definition.meta})
