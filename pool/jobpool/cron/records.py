"""The memory of one scheduler, and the records of all for one another and for people, in the broker's key store.

A record is a hint. The unique enqueue, or the right to run it, decides whether an instant has been fired, and a record
is written only after that. So with a lost or old record a scheduler tries again what was done, which does nothing. A
record must never be newer than the truth: then a firing would be lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
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
    failed: bool = False  # it ran inline and failed, or was held back because another one did

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return the record that `json.encode` wrote; None for any other, such as one of a later version."""
        try:
            return json.decode(data, type=cls)
        except (MsgspecError, ValueError):
            return None


class Records:
    """The records of all schedules of a broker. Every call raises `BackendUnavailable`, and blocks for a round trip."""

    def __init__(self, keys: KeyStore, token: str) -> None:
        self._keys = keys
        self._token = token

    def load(self, names: Iterable[str]) -> dict[str, Record]:
        """Read those that there are: a round trip for each 10,000 that the broker keeps."""
        wanted = set(names)
        kept = all_records(self._keys, SPACE, page=MOST)
        return {name: known for name, data in kept if name in wanted and (known := Record.from_bytes(data))}

    def get(self, name: str) -> Record | None:
        data = self._keys.get_record(SPACE, name)
        return None if data is None else Record.from_bytes(data)

    def put(self, records: Mapping[str, Record]) -> None:
        """Write them, but for those of which there is one that has seen more. Two round trips.

        Between the two another scheduler may write a newer one, which is then put back by this one: see the module.
        """
        known = {name: self.get(name) for name in records} if len(records) == 1 else self.load(records)
        newer: dict[str, Record] = {}
        for name, record in records.items():
            other = known.get(name)
            if other is not None and other.seen > record.seen:
                continue
            if other is not None and not record.last:
                record = replace(other, seen=record.seen, next=record.next, failed=record.failed)
            newer[name] = record
        self.begin(newer)

    def begin(self, records: Mapping[str, Record]) -> None:
        """Write the first records of schedules that had none. One round trip."""
        self._keys.put_records(SPACE, {name: json.encode(record) for name, record in records.items()}, LONGEST_KEPT)

    def win(self, keys: Sequence[str], seconds: float = MEMORY) -> list[bool]:
        """Tell of each key if this scheduler is the one that fires: of all that ask within `seconds`, one is.

        Asked again by the same scheduler, the answer is the same: a lost reply does no harm.
        """
        rates = [Rate(f"cron:{key}", 1, seconds) for key in keys]
        return [after == 0.0 for after in self._keys.take_many(SPACE, rates, self._token)]


@dataclass(slots=True)
class State:
    """The state of one schedule. Every instant up to `seen` was dealt with (None = never met); `next` comes after it.

    `ended`: the newest instant that this scheduler dealt with, and whether a dependent may run after it.
    """

    seen: datetime | None = None
    next: datetime | None = None
    ended: tuple[datetime, bool] | None = None


class Memory:
    """The states of all schedules. Without `records`, shared with other schedulers, nothing outlives this process."""

    def __init__(self, plan: Iterable[Planned], records: Records | None) -> None:
        self.planned = {planned.name: planned for planned in plan}
        self._states = {name: State() for name in self.planned}
        self._records = records
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
        if self._records is None or (self._has_read and not behind):
            return
        for name, record in self._records.load(self.planned).items():
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
        if self._records is None:
            return True
        record = self._records.get(planned.name)
        return None if record is None or record.seen < newest else not record.failed

    def win(self, keys: Sequence[str], seconds: float = MEMORY) -> list[bool]:
        """Tell as `Records.win` of each key if this scheduler is the one that fires. Raises `BackendUnavailable`."""
        return [True] * len(keys) if self._records is None else self._records.win(keys, seconds)

    def tell(self, records: Mapping[str, Record], *, first: bool = False) -> None:
        """Leave records for others. Where that fails, they try what is done already, which does nothing.

        `first`: of schedules that had none; what is missed from here on is made up for.
        """
        if self._records is not None and records:
            with contextlib.suppress(BackendUnavailable):
                (self._records.begin if first else self._records.put)(records)
