"""A cron expression in a time zone: its instants before and after any moment. Pure.

Each piece of a zone's timeline has local times that fire in it, from `Schedule._opening` on, each at its own moment.
Local times that were left out fire at its beginning. A moment is a number: seconds from 1970-01-01 00:00 UTC; a local
time is the clock's reading, counted in the same way. So within a piece, local time = moment + offset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from itertools import pairwise

from msgspec import Struct

from jobpool.message.cron_fields import CronFields, Kind, open_zone, parse_fields

DAY = 86400
EARLIEST = 0
LATEST = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SECOND = timedelta(seconds=1)
_FAR = 2 * DAY  # local time and UTC, and local times before and after any change, are never so far apart
_SAMPLED = 2 * DAY  # since 1970 no zone has changed its offset twice within six days, nor do the rules for the future
_SEARCHED_YEARS = 41  # the longest wait, from one leap day on a Monday to the next, across 2100, is forty years


class Schedule:
    """The instants of a cron expression in a zone. Immutable, and safe in threads.

    All instants are aware, in UTC, on whole minutes of the local clock, and no two are the same. docs/cron.md says what
    an expression may hold, and what happens when clocks change.

    Args:
        expression: Five fields (minute, hour, day of month, month, day of week), or `@daily` and its like. Kept in its
            normal form: lower case but for `L`, five fields, one space between them.
        zone: IANA name of the time zone that the fields are read in.

    Raises `InvalidJob`: the zone is refused, or the expression, also one that never comes, like the 30th of February.
    The text names the field and what it may hold, or the zones that are written alike.
    """

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        fields = parse_fields(expression)
        self.expression = fields.text
        self.zone = zone
        self._kind = fields.kind
        self._times = LocalTimes(fields)
        self._line = _timeline(zone)

    def next(self, after: datetime) -> datetime | None:
        """Return the first instant strictly after an aware moment, from 1970 on; None past the year 9998."""
        cursor = max(_seconds(after) + 1, EARLIEST)
        while cursor < LATEST:
            piece = self._line.piece(cursor)
            low = self._opening(piece)
            if cursor > piece.start:
                low = max(low, cursor + piece.offset)
            time = self._times.first_from(low)
            if time is None:
                return None
            if time < piece.end + piece.offset:
                return datetime.fromtimestamp(max(time - piece.offset, piece.start), UTC)
            # On to the end of the piece, or shortly before the next local time there is, years ahead say.
            time = self._times.first_from(piece.end + piece.offset - _FAR)
            cursor = piece.end if time is None else max(piece.end, time - _FAR)
        return None

    def previous(self, at: datetime) -> datetime | None:
        """Return the last instant at or before an aware moment; None when there is none since 1970."""
        cursor = min(_seconds(at), LATEST - 1)
        while cursor >= EARLIEST:
            piece = self._line.piece(cursor)
            time = self._times.last_until(cursor + piece.offset)
            if time is None:
                return None
            if time >= self._opening(piece):
                moment = max(time - piece.offset, piece.start)
                return datetime.fromtimestamp(moment, UTC) if moment >= EARLIEST else None
            time = self._times.last_until(piece.start + piece.offset + _FAR)
            cursor = piece.start - 1 if time is None else min(piece.start - 1, time + _FAR)
        return None

    def between(self, after: datetime, until: datetime, *, most: int) -> list[datetime]:
        """Return the last `most` (>= 0) instants in (after, until], both aware, oldest first; each in some 10 µs."""
        found: list[datetime] = []
        moment = self.previous(until)
        while len(found) < most and moment is not None and after < moment:
            found.append(moment)
            moment = self.previous(moment - _SECOND)
        return found[::-1]

    def is_due(self, at: datetime) -> bool:
        """Return whether an instant lies in the minute of an aware moment, and not after it."""
        last = self.previous(at)
        return last is not None and last >= at.replace(second=0, microsecond=0)

    def _opening(self, piece: Piece) -> int:
        """Return the local time from which on times fire in this piece.

        Fixed times: from where clocks had got to, so that none is left out and none comes twice. Intervals: those that
        come again fire again. Hourly ones: what the clock really shows.
        """
        shown = piece.start + piece.offset
        if self._kind is Kind.FIXED:
            return piece.reached
        return min(piece.reached, shown) if self._kind is Kind.INTERVAL else shown


def _seconds(moment: datetime) -> int:
    """Return whole seconds from 1970 to a moment, rounded down."""
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: write datetime(…, tzinfo=UTC)")
    return (moment - _EPOCH) // _SECOND


# --- the calendar -------------------------------------------------------------------------------------


class LocalTimes:
    """The local times that the fields name, forwards and backwards. Immutable.

    croniter does not search here. Beside `#` or `L` of a week it takes a day of the month that both name, not one that
    either names. Beside `*/2` it takes all seven days of a week for `*`. And it needs twenty times as long.
    """

    def __init__(self, fields: CronFields) -> None:
        self._fields = fields
        self._seconds = tuple(hour * 3600 + minute * 60 for hour in fields.hours for minute in fields.minutes)

    def first_from(self, time: int) -> int | None:
        """Return the first at or after a local time; None past the year 9999."""
        day, second = divmod(time, DAY)
        if second > self._seconds[-1]:
            day, second = day + 1, 0
        on = date.fromordinal(day + _EPOCH_DAY)
        for month in range(on.year * 12 + on.month - 1, min(on.year + _SEARCHED_YEARS, date.max.year + 1) * 12):
            days = _days_in_month(self._fields, month // 12, month % 12 + 1)
            if days and days[-1] >= day:
                found = days[bisect_left(days, day)]
                return found * DAY + self._seconds[bisect_left(self._seconds, second) if found == day else 0]
        return None

    def last_until(self, time: int) -> int | None:
        """Return the last at or before a local time; None when there was none in the forty years before it."""
        day, second = divmod(time, DAY)
        if second < self._seconds[0]:
            day, second = day - 1, DAY
        on = date.fromordinal(day + _EPOCH_DAY)
        for month in range(on.year * 12 + on.month - 1, (on.year - _SEARCHED_YEARS) * 12 - 1, -1):
            days = _days_in_month(self._fields, month // 12, month % 12 + 1)
            if days and days[0] <= day:
                found = days[bisect_right(days, day) - 1]
                return found * DAY + self._seconds[(bisect_right(self._seconds, second) if found == day else 0) - 1]
        return None


@lru_cache(maxsize=4096)
def _days_in_month(fields: CronFields, year: int, month: int) -> tuple[int, ...]:
    """Return the days of one month, as numbers from 1970-01-01, ascending."""
    if month not in fields.months:
        return ()
    before = date(year, month, 1).toordinal() - _EPOCH_DAY - 1
    length = monthrange(year, month)[1]
    weekday_before = before + 4  # 1970-01-01 was a Thursday, 0 is Sunday
    days = range(1, length + 1)
    return tuple(before + day for day in days if _is_named(fields, day, length, (weekday_before + day) % 7))


def _is_named(fields: CronFields, day: int, length: int, weekday: int) -> bool:
    """Return whether a day of a month is one: where both fields are given, either will do."""
    if fields.days is None and fields.weekdays is None:
        return True
    if fields.days is not None and (day in fields.days or (fields.last_day and day == length)):
        return True
    if fields.weekdays is None:
        return False
    nth = (weekday, (day + 6) // 7) in fields.nth or (day + 7 > length and (weekday, 0) in fields.nth)
    return weekday in fields.weekdays or nth


# --- the clocks of a zone -----------------------------------------------------------------------------


class Piece(Struct, frozen=True):
    """A stretch of time without a change. A long one may come in several pieces, which may overlap.

    `reached`: all local times before this one had been shown, or left out, when it began. At a change forward it is
    before the local time of `start`, and the times between do not exist. At a change back it is after it, and the
    times between exist twice. Otherwise it is the local time of `start`.
    """

    start: int  # its first second
    end: int  # the first second after it
    offset: int  # local time minus UTC, in seconds
    reached: int


class Timeline:
    """The pieces of one zone; a year is looked at when it is first asked for, in less than a millisecond.

    `datetime` and its `fold` answer for one local time. A schedule must know all local times that a change leaves out,
    and all that come twice. A change is over when the next one comes: none is larger than a day, and none so soon.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._years: dict[int, list[Piece]] = {}
        fixed = zone.utcoffset(None)
        offset = int(fixed.total_seconds()) if fixed is not None else 0
        self._always = Piece(EARLIEST, LATEST, offset, EARLIEST + offset) if fixed is not None else None

    def piece(self, moment: int) -> Piece:
        """Return the piece that a moment lies in, EARLIEST <= moment < LATEST."""
        if self._always is not None:
            return self._always
        year = datetime.fromtimestamp(moment, UTC).year
        pieces = self._years.get(year)
        if pieces is None:
            pieces = self._years[year] = self._look_at(year)
        return pieces[bisect_right(pieces, moment, key=lambda piece: piece.start) - 1]

    def _look_at(self, year: int) -> list[Piece]:
        """Return the pieces of a year, and of the days before it, whose changes back may not be over when it begins."""
        start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) - 2 * _SAMPLED
        end = int(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp())
        samples = [*range(start, end - 1, _SAMPLED), end - 1]
        changes = [
            self._change(low, high) for low, high in pairwise(samples) if self._offset(low) != self._offset(high)
        ]
        pieces: list[Piece] = []
        reached = start + self._offset(start)
        for begins, ends in pairwise([start, *changes, end]):
            offset = self._offset(begins)
            pieces.append(Piece(begins, ends, offset, reached))
            reached = ends + offset
        return pieces

    def _change(self, low: int, high: int) -> int:
        """Return the first second between the two at which clocks run otherwise than at `low`."""
        before = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(middle) == before else (low, middle)
        return high

    def _offset(self, moment: int) -> int:
        offset = datetime.fromtimestamp(moment, self._zone).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())


_timeline = cache(lambda zone: Timeline(open_zone(zone)))  # one for all schedules of a process
