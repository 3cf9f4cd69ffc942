"""The memory of one scheduler: what it has seen of each schedule, and what it reads from and writes for others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jobpool.cron.records import TOLD_FOR, Record, Records
from jobpool.cron.scheduler import Planned
from jobpool.errors import BackendUnavailable

BEHIND = 5.0
"""Seconds of lateness at which a scheduler reads again what others have done meanwhile."""


@dataclass(slots=True)
class State:
    """The state of one schedule.

    Attributes:
        seen: Every instant up to here was dealt with; None = never met.
        next: The next instant after it; None = never.
        ended: The newest instant that this scheduler dealt with, and whether a dependent may run after it.
    """

    seen: datetime | None = None
    next: datetime | None = None
    ended: tuple[datetime, bool] | None = None


class Memory:
    """The states of all schedules.

    Args:
        plan: The schedules.
        records: Shared with other schedulers; None = there are none, and nothing outlives this process.
    """

    def __init__(self, plan: Iterable[Planned], records: Records | None) -> None:
        self._planned = {planned.name: planned for planned in plan}
        self._states = {name: State() for name in self._planned}
        self._records = records
        self._has_read = False

    def __getitem__(self, planned: Planned) -> State:
        return self._states[planned.name]

    def named(self, name: str) -> Planned:
        return self._planned[name]

    def note_seen(self, planned: Planned, seen: datetime) -> None:
        """Note that every instant up to here was dealt with."""
        state = self[planned]
        state.seen = seen
        state.next = planned.schedule.next(seen)

    # --- reading ------------------------------------------------------------------------------------

    def read(self, now: datetime) -> None:
        """Take in the records, at the first time and whenever this scheduler has been away.

        Raises:
            BackendUnavailable: Nothing is changed.
        """
        if self._records is None or (
            self._has_read and not any(self._is_behind(s, now) for s in self._states.values())
        ):
            return
        for name, record in self._records.load(self._planned).items():
            state = self._states[name]
            if state.seen is None or record.seen > state.seen:
                self.note_seen(self._planned[name], record.seen)
        self._has_read = True

    def _is_behind(self, state: State, now: datetime) -> bool:
        return state.next is not None and (now - state.next).total_seconds() > BEHIND

    def ended_well(self, planned: Planned, newest: datetime) -> bool | None:
        """Return how the run of an inline job at this instant, or a later one, ended in whatever scheduler; None: not
        yet.

        Where nothing is shared, what this scheduler did not run was not due.
        """
        ended = self[planned].ended
        if ended is not None and ended[0] >= newest:
            return ended[1]
        if self._records is None:
            return True
        record = self._records.get(planned.name)
        return None if record is None or record.seen < newest else not record.failed

    # --- telling others -----------------------------------------------------------------------------

    def may_run(self, key: str) -> bool:
        """Return whether this scheduler is the one that runs it inline. Raises `BackendUnavailable`."""
        return self._records is None or self._records.win([key])[0]

    def have_fired(self, keys: Sequence[str]) -> list[bool]:
        """Tell of each firing if this scheduler is the one that says that it was enqueued.

        Raises `BackendUnavailable`.
        """
        return [True] * len(keys) if self._records is None else self._records.win(keys, TOLD_FOR)

    def tell(self, records: Mapping[str, Record]) -> None:
        """Leave records. Where that fails, others try what is done already, which does nothing."""
        if self._records is not None and records:
            with contextlib.suppress(BackendUnavailable):
                self._records.put(records)

    def introduce(self, records: Mapping[str, Record]) -> None:
        """Leave the first records of schedules: what is missed from here on is made up for."""
        if self._records is not None and records:
            with contextlib.suppress(BackendUnavailable):
                self._records.begin(records)
