"""The memory of one scheduler, and the records of all for one another and for people, in the broker's key store.

A record is a hint. The unique enqueue, or the right to run it, decides whether an instant has been fired, and the
record is written after that. If it is lost or old, a scheduler tries the firing again, which does nothing while the
broker remembers it: for a day, or for a job with an idempotency key ten minutes or longer (`idempotency_ttl`). Then it
writes the record. A record must never be newer than the truth: then a firing would be lost.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct, json
from msgspec.structs import replace

from jobpool.broker.key_store import KeyStore, Kind, all_records, read_record
from jobpool.cron.scheduler import Planned
from jobpool.errors import OUTAGES
from jobpool.message.definition import rfc3339
from jobpool.message.guards import LONGEST_RECORD_KEPT, Rate

SPACE = "cron"  # where the records, and the rights to run inline, are kept
JOBS = "cron-jobs"  # where it is kept which job was fired
INLINE_RIGHT_S = 86400.0  # seconds for which it is remembered who has the right to run an instant inline
ENQUEUED_NOTE_S = 3600.0
"""Seconds for which it is remembered that a firing was enqueued, so no other release runs it inline, and who tells."""

QUEUED = "queued"  # the common token of all schedulers that enqueue an instant, and do not run it inline

RECORDS_A_PAGE = 10_000  # records that are read at once
MAX_AHEAD = timedelta(minutes=5)
"""Limit of how far a schedule's last instant may lie in the future, however badly machines agree about the time."""

SILENT = "a clock was ahead: nothing fires until it is as late again"
SILENT_MEND = (
    "set the clock if it is wrong; if it is right, delete the schedule's record (docs/cron.md, Missed firings), or give"
    " the schedule another name"
)

SAME_NAME = "a schedule was fired as another job"
SAME_NAME_MEND = "if another app on this broker has a schedule of this name, give one of them another, .named(…)"

REREAD_AFTER_S = 5.0  # seconds of lateness at which a scheduler reads again what others have done meanwhile

log = logging.getLogger("jobpool.cron")

Moment = Annotated[datetime, Meta(tz=True)]


class Owner(Struct, frozen=True, forbid_unknown_fields=True):
    """The scheduler that fired: its machine, process and name."""

    host: str
    pid: int
    name: str


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """The record of one schedule. With another field, schedulers of older versions could not read it."""

    seen: Moment  # every instant up to here was dealt with
    last: Moment | None = None  # the last instant that was fired; None = none was
    fired_at: Moment | None = None  # when that was, on the broker's clock
    lateness: float = 0.0  # seconds from the one to the other
    owner: Owner | None = None  # the scheduler that fired it
    next: Moment | None = None  # the instant after `seen`, as that scheduler's app has it
    id: str | None = None  # of the message that was enqueued; None = it ran inline
    failed: bool = False  # it ran inline and failed, or was not fired at `seen`: held back, say, by one that failed


class Fired(Struct, frozen=True):
    """The job that was fired last, for those who have another job of that name."""

    at: Moment  # the instant
    handler: str
    queue: str | None = None  # None = it ran inline


def silent_until(record: Record | None, now: datetime) -> datetime | None:
    """Return until when a schedule with this record fires nothing, if a clock was far ahead and has been put back."""
    return record.seen if record and record.seen > now + MAX_AHEAD else None


def load(keys: KeyStore, names: Iterable[str]) -> dict[str, Record]:
    """Read the records of these schedules that there are: a round trip for each 10,000 that the broker keeps."""
    return _load(keys, SPACE, names, Record)


def _load(keys: KeyStore, space: str, names: Iterable[str], kind: type[Kind]) -> dict[str, Kind]:
    wanted, kept = set(names), all_records(keys, space, page=RECORDS_A_PAGE)
    return {name: known for name, data in kept if name in wanted and (known := read_record(data, kind))}


@dataclass(slots=True)
class State:
    """The state of one schedule."""

    seen: datetime | None = None  # every instant up to here was dealt with; None = it was never met
    next: datetime | None = None  # the instant after that
    ended: tuple[datetime, bool] | None = None
    """The newest instant that this scheduler dealt with, and whether a dependent may run after it."""


class ScheduleStates:
    """The states of all schedules. Without `keys`, shared with other schedulers, nothing outlives this process."""

    def __init__(self, plan: Iterable[Planned], keys: KeyStore | None) -> None:
        self.planned = {planned.name: planned for planned in plan}
        self._states = {name: State() for name in self.planned}
        self._keys = keys
        self._token = secrets.token_hex(16)
        self._has_read = False
        self._untold: dict[str, Record] = {}
        self._is_silent = False
        self._lost: dict[str, datetime] = {}
        self._warned: set[str] = set()

    def __getitem__(self, planned: Planned) -> State:
        return self._states[planned.name]

    def note_seen(self, planned: Planned, seen: datetime) -> None:
        """Note that every instant up to here was dealt with."""
        state = self[planned]
        state.seen = seen
        state.next = planned.schedule.next(seen)

    def read(self, now: datetime) -> None:
        """Take in the records, at the first time and after having been away. If it raises, nothing has changed.

        And tell what could not be told before.
        """
        if self._keys is None:
            return
        behind = not self._has_read or any(
            state.next and (now - state.next).total_seconds() > REREAD_AFTER_S for state in self._states.values()
        )
        known = load(self._keys, self.planned) if behind or self._lost else {}
        jobs = _load(self._keys, JOBS, self._lost, Fired) if self._lost else {}
        for name, record in known.items() if behind else ():
            seen = self._states[name].seen
            if seen is None or record.seen > seen:
                self.note_seen(self.planned[name], record.seen)
        self._look_at_lost(known, jobs)
        self._has_read, self._is_silent = True, False
        self.publish({})

    def note_lost(self, planned: Planned, at: datetime) -> None:
        """Note that another scheduler was first at this instant: its record is looked at with the next turn."""
        if self._keys is not None:
            self._lost[planned.name] = at

    def _look_at_lost(self, known: Mapping[str, Record], jobs: Mapping[str, Fired]) -> None:
        """Write the record that the first one has not written; warn once if that one fires another job by this name."""
        lost, self._lost = self._lost, {}
        for name, at in lost.items():
            other, job = known.get(name), self.planned[name].definition
            if other is None or other.seen < at:
                if job.queue is not None:  # what runs inline may not have ended yet
                    self._untold.setdefault(name, Record(at, next=self.planned[name].schedule.next(at)))
            elif (fired := jobs.get(name)) is None or fired.at < at or fired.at != other.last:
                continue  # nothing was fired, or by an older version
            elif (fired.handler, fired.queue) != (job.handler, job.queue) and name not in self._warned:
                self._warned.add(name)
                theirs = f"{fired.handler} {f'in {fired.queue}' if fired.queue else 'inline'}"
                fields = {"schedule": name, "at": rfc3339(fired.at), "fired": theirs, "mend": SAME_NAME_MEND}
                log.warning(SAME_NAME, extra={"fields": fields})

    def ended_well(self, planned: Planned, newest: datetime) -> bool | None:
        """Return how the run of an inline job at this instant, or a later one, ended in any scheduler; None: not yet.

        Where nothing is shared, what this scheduler did not run was not due.
        """
        ended = self[planned].ended
        if ended is not None and ended[0] >= newest:
            return ended[1]
        if self._keys is None:
            return True
        record = self._get(self._keys, planned.name)
        return None if record is None or record.seen < newest else not record.failed

    def may_run(self, key: str) -> bool:
        """Take the right to run a firing inline: of all that ask within a day, one gets it."""
        return self._win([f"cron:{key}"], INLINE_RIGHT_S, self._token)[0]

    def may_enqueue(self, keys: Sequence[str]) -> list[bool]:
        """Tell of each firing if it may be enqueued: not if a scheduler of another release has run it inline.

        All schedulers that enqueue it may; the enqueue decides between them.
        """
        return self._win([f"cron:{key}" for key in keys], ENQUEUED_NOTE_S, QUEUED)

    def is_first(self, keys: Sequence[str]) -> list[bool]:
        """Tell of each firing that is enqueued if this scheduler is the one to say so: of all that ask, one is.

        Asked after the enqueue: a note before it, and then a crash, would lose the firing.
        """
        return self._win([f"told:{key}" for key in keys], ENQUEUED_NOTE_S, self._token)

    def _win(self, names: Sequence[str], seconds: float, token: str) -> list[bool]:
        """Tell of each name if `token` is the first. One round trip. Raises `BackendUnavailable`.

        Asked again, the answer is the same: a lost reply does no harm.
        """
        if self._keys is None or not names:
            return [True] * len(names)
        rates = [Rate(name, 1, seconds) for name in names]
        return [after == 0.0 for after in self._keys.take_many(SPACE, rates, token)]

    def publish(self, records: Mapping[str, Record]) -> None:
        """Leave records for others, but where one has seen more. Three round trips at most.

        Where that fails, they are told with the next turn, and until then others try what is done already. Between the
        two another scheduler may write a newer one, which is then put back by this one: see the module.
        """
        if self._keys is None:
            return
        self._untold |= records
        if self._untold and not self._is_silent:
            try:
                newer = self._newer(self._keys, self._untold)
                data = {name: json.encode(record) for name, record in newer.items()}
                self._keys.put_records(SPACE, data, LONGEST_RECORD_KEPT)
                self._keys.put_records(JOBS, dict(self._fired(newer)), LONGEST_RECORD_KEPT)
                self._untold = {}
            except OUTAGES:  # each call that is made in vain takes as long as a call may
                self._is_silent = True

    def _fired(self, records: Mapping[str, Record]) -> Iterator[tuple[str, bytes]]:
        for name, record in records.items():
            if record.last == record.seen:
                job = self.planned[name].definition
                yield name, json.encode(Fired(record.last, job.handler, job.queue))

    def _newer(self, keys: KeyStore, records: Mapping[str, Record]) -> dict[str, Record]:
        known = {name: self._get(keys, name) for name in records} if len(records) == 1 else load(keys, records)
        newer: dict[str, Record] = {}
        for name, record in records.items():
            other = known.get(name)
            if other is not None and other.seen > record.seen:
                continue
            if other is not None and not record.last:
                if other.seen == record.seen:
                    continue
                record = replace(other, seen=record.seen, next=record.next, failed=record.failed)
            newer[name] = record
        return newer

    @staticmethod
    def _get(keys: KeyStore, name: str) -> Record | None:
        return read_record(keys.get_record(SPACE, name), Record)
