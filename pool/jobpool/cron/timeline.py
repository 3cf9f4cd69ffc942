"""The clocks of a zone, as pieces of time within which they run evenly.

Every moment is a number: seconds from 1970-01-01 00:00 UTC; a local time is the clock's reading, counted in the same
way. So within a piece, local time = moment + offset.

`datetime` and its `fold` answer only for one local time. A schedule must know the whole of a change of any size: which
local times were left out and which came a second time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cache
from itertools import pairwise

from jobpool.message.cron_fields import open_zone

EARLIEST = 0
LATEST = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())

_DAY = 86400
_SAMPLED = 2 * _DAY
"""Since 1970 no zone has changed its offset twice within six days, nor do the rules for the future."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time without a change. A long one may come in several pieces, which may overlap.

    Attributes:
        start: Its first second.
        end: The first second after it.
        offset: Local time minus UTC, in seconds.
        reached: All local times before this one had been shown, or left out, when it began. At a change forward it is
            before the local time of `start`, and the times between do not exist. At a change back it is after it, and
            the times between exist twice. Otherwise it is the local time of `start`.
    """

    start: int
    end: int
    offset: int
    reached: int


class Timeline:
    """The pieces of one zone; a year is looked at when it is first asked for, in less than a millisecond.

    A change is always over when the next one comes: none is larger than a day or so, and none so soon.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._years: dict[int, list[Piece]] = {}
        fixed = self._zone.utcoffset(None)
        if fixed is not None:
            offset = int(fixed.total_seconds())
            self._always: Piece | None = Piece(EARLIEST, LATEST, offset, EARLIEST + offset)
        else:
            self._always = None

    def piece(self, moment: int) -> Piece:
        """Return the piece that a moment lies in, EARLIEST <= moment < LATEST."""
        if self._always is not None:
            return self._always
        year = datetime.fromtimestamp(moment, UTC).year
        pieces = self._years.get(year)
        if pieces is None:
            pieces = self._years[year] = self._look_at(year)
        return pieces[bisect_right(pieces, moment, key=_start) - 1]

    def _look_at(self, year: int) -> list[Piece]:
        """Return the pieces of a year, and of the days before it, whose changes back may not be over when it begins."""
        start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) - 2 * _SAMPLED
        end = int(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp())
        bounds = [start, *self._changes(start, end), end]
        pieces: list[Piece] = []
        reached = start + self._offset(start)
        for begins, ends in pairwise(bounds):
            offset = self._offset(begins)
            pieces.append(Piece(begins, ends, offset, reached))
            reached = ends + offset
        return pieces

    def _changes(self, start: int, end: int) -> list[int]:
        changes: list[int] = []
        before = self._offset(start)
        for low in range(start, end - 1, _SAMPLED):
            high = min(low + _SAMPLED, end - 1)
            after = self._offset(high)
            if after != before:
                changes.append(self._first_change(low, high))
            before = after
        return changes

    def _first_change(self, low: int, high: int) -> int:
        before = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(middle) == before else (low, middle)
        return high

    def _offset(self, moment: int) -> int:
        offset = datetime.fromtimestamp(moment, self._zone).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())


@cache
def timeline(name: str) -> Timeline:
    """Return the timeline of a zone, one for all schedules of a process.

    Raises:
        InvalidJob: There is no such zone.
    """
    return Timeline(open_zone(name))


def _start(piece: Piece) -> int:
    return piece.start
