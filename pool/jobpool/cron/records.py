"""The memory of one scheduler, and the records of all for one another and for people, in the broker's key store.

A record is a hint. The unique enqueue, or the right to run it, decides whether an instant has been fired, and a record
is written only after that. So with a lost or old record a scheduler tries again what was done, which does nothing. A
record must never be newer than the truth: then a firing would be lost.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Self

from msgspec import Meta, MsgspecError, Struct, json
from msgspec.structs import replace

from jobpool.broker.key_store import KeyStore, all_records
from jobpool.cron.scheduler import Planned
from jobpool.errors import BackendUnavailable
from jobpool.message.guards import LONGEST_KEPT, Rate

SPACE = "cron"  # where the records, and the rights to run inline, are kept
MEMORY = 86400.0  # seconds for which it is remembered who has the right to run an instant inline
TOLD_FOR = 3600.0
"""Seconds for which it is remembered who may say that he fired what is enqueued: nothing hangs on that but logs."""

MOST = 10_000  # records that are read at once
AHEAD = timedelta(minutes=5)
"""Limit of how far a schedule's last instant may lie in the future, however badly machines agree about the time."""

SILENT = "a clock was ahead: nothing fires until it is as late again"
SILENT_MEND = (
    "set the clock if it is wrong; if it is right, delete the schedule's record (docs/cron.md, Missed firings), or give"
    " the schedule another name"
)

BEHIND = 5.0  # seconds of lateness at which a scheduler reads again what others have done meanwhile


Moment = Annotated[datetime, Meta(tz=True)]


class Owner(Struct, frozen=True, forbid_unknown_fields=True):
    """The scheduler that fired: its machine, process and name."""

    host: str
    pid: int
    name: str


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """The record of one schedule."""

    seen: Moment  # every instant up to here was dealt with
    last: Moment | None = None  # the last instant that was fired; None = none was
    fired_at: Moment | None = None  # when that was, on the broker's clock
    lateness: float = 0.0  # seconds from the one to the other
    owner: Owner | None = None  # the scheduler that fired it
    next: Moment | None = None  # the instant after `seen`, as that scheduler's app has it
    id: str | None = None  # of the message that was enqueued; None = it ran inline
    failed: bool = False  # it ran inline and failed, or was not fired at `seen`: held back, say, by one that failed

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return the record that `json.encode` wrote; None for any other, such as one of a later version."""
        try:
            return json.decode(data, type=cls)
        except (MsgspecError, ValueError):
            return None


def silent_until(record: Record | None, now: datetime) -> datetime | None:
    """Return until when a schedule with this record fires nothing, if a clock was far ahead and has been put back."""
    return record.seen if record and record.seen > now + AHEAD else None


def load(keys: KeyStore, names: Iterable[str]) -> dict[str, Record]:
    """Read the records of these schedules that there are: a round trip for each 10,000 that the broker keeps."""
    wanted = set(names)
    kept = all_records(keys, SPACE, page=MOST)
    return {name: known for name, data in kept if name in wanted and (known := Record.from_bytes(data))}


@dataclass(slots=True)
class State:
    """The state of one schedule."""

    seen: datetime | None = None  # every instant up to here was dealt with; None = it was never met
    next: datetime | None = None  # the instant after that
    ended: tuple[datetime, bool] | None = None
    """The newest instant that this scheduler dealt with, and whether a dependent may run after it."""


class Memory:
    """The states of all schedules. Without `keys`, shared with other schedulers, nothing outlives this process."""

    def __init__(self, plan: Iterable[Planned], keys: KeyStore | None) -> None:
        self.planned = {planned.name: planned for planned in plan}
        self._states = {name: State() for name in self.planned}
        self._keys = keys
        self._token = secrets.token_hex(16)
        self._has_read = False

    def __getitem__(self, planned: Planned) -> State:
        return self._states[planned.name]

    def note_seen(self, planned: Planned, seen: datetime) -> None:
        """Note that every instant up to here was dealt with."""
        state = self[planned]
        state.seen = seen
        state.next = planned.schedule.next(seen)

    def read(self, now: datetime) -> None:
        """Take in the records, at the first time and after having been away. If it raises, nothing has changed."""
        behind = any(state.next and (now - state.next).total_seconds() > BEHIND for state in self._states.values())
        if self._keys is None or (self._has_read and not behind):
            return
        for name, record in load(self._keys, self.planned).items():
            seen = self._states[name].seen
            if seen is None or record.seen > seen:
                self.note_seen(self.planned[name], record.seen)
        self._has_read = True

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

    def win(self, keys: Sequence[str], seconds: float = MEMORY) -> list[bool]:
        """Tell of each key if this scheduler is the one that fires: of all that ask within `seconds`, one is.

        Asked again by the same scheduler, the answer is the same: a lost reply does no harm. One round trip. Raises
        `BackendUnavailable`.
        """
        if self._keys is None:
            return [True] * len(keys)
        rates = [Rate(f"cron:{key}", 1, seconds) for key in keys]
        return [after == 0.0 for after in self._keys.take_many(SPACE, rates, self._token)]

    def tell(self, records: Mapping[str, Record], *, first: bool = False) -> None:
        """Leave records for others, but where one has seen more. Two round trips.

        Where that fails, they try what is done already, which does nothing. Between the two another scheduler may write
        a newer one, which is then put back by this one: see the module. `first`: of schedules that had none; what is
        missed from here on is made up for.
        """
        if self._keys is not None and records:
            with contextlib.suppress(BackendUnavailable):
                newer = records if first else self._newer(self._keys, records)
                data = {name: json.encode(record) for name, record in newer.items()}
                self._keys.put_records(SPACE, data, LONGEST_KEPT)

    def _newer(self, keys: KeyStore, records: Mapping[str, Record]) -> dict[str, Record]:
        known = {name: self._get(keys, name) for name in records} if len(records) == 1 else load(keys, records)
        newer: dict[str, Record] = {}
        for name, record in records.items():
            other = known.get(name)
            if other is not None and other.seen > record.seen:
                continue
            if other is not None and not record.last:
                record = replace(other, seen=record.seen, next=record.next, failed=record.failed)
            newer[name] = record
        return newer

    @staticmethod
    def _get(keys: KeyStore, name: str) -> Record | None:
        data = keys.get_record(SPACE, name)
        return None if data is None else Record.from_bytes(data)
