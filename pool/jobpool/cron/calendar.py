"""The local times that the five fields name, on a wall clock that knows no zone and is never changed.

A local time is a number: the seconds from 1970-01-01 00:00 on that clock.

croniter does not search here. Beside `#` or `L` of a week it takes a day of the month that both name, not one that
either names. Beside `*/2` it takes all seven days of a week for `*`. And it needs twenty times as long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from datetime import date
from functools import lru_cache

from jobpool.message.cron_fields import CronFields

DAY = 86400
LAST_YEAR = 9999
_EPOCH = date(1970, 1, 1).toordinal()
_SEARCHED = 41
"""Years: the longest wait, from one leap day on a Monday to the next, across 2100, is forty."""


class LocalTimes:
    """The local times that the fields name, forwards and backwards. Immutable."""

    __slots__ = ("_fields", "_seconds")

    def __init__(self, fields: CronFields) -> None:
        self._fields = fields
        self._seconds = tuple(hour * 3600 + minute * 60 for hour in fields.hours for minute in fields.minutes)

    def first_from(self, time: int) -> int | None:
        """Return the first at or after a local time; None past the year 9999."""
        day, second = divmod(time, DAY)
        days = self._days_of(day)
        if days and _holds(days, day):
            index = bisect_left(self._seconds, second)
            if index < len(self._seconds):
                return day * DAY + self._seconds[index]
        later = self._day_after(day)
        return None if later is None else later * DAY + self._seconds[0]

    def last_until(self, time: int) -> int | None:
        """Return the last at or before a local time; None when there was none in the forty years before it."""
        day, second = divmod(time, DAY)
        days = self._days_of(day)
        if days and _holds(days, day):
            index = bisect_right(self._seconds, second)
            if index > 0:
                return day * DAY + self._seconds[index - 1]
        earlier = self._day_before(day)
        return None if earlier is None else earlier * DAY + self._seconds[-1]

    def _days_of(self, day: int) -> tuple[int, ...]:
        on = date.fromordinal(day + _EPOCH)
        return _days_in_month(self._fields, on.year, on.month)

    def _day_after(self, day: int) -> int | None:
        on = date.fromordinal(day + _EPOCH)
        for month in range(on.year * 12 + on.month - 1, min(on.year + _SEARCHED, LAST_YEAR + 1) * 12):
            days = _days_in_month(self._fields, month // 12, month % 12 + 1)
            if days and days[-1] > day:
                return days[bisect_right(days, day)]
        return None

    def _day_before(self, day: int) -> int | None:
        on = date.fromordinal(day + _EPOCH)
        for month in range(on.year * 12 + on.month - 1, (on.year - _SEARCHED) * 12 - 1, -1):
            days = _days_in_month(self._fields, month // 12, month % 12 + 1)
            if days and days[0] < day:
                return days[bisect_left(days, day) - 1]
        return None


def _holds(days: tuple[int, ...], day: int) -> bool:
    index = bisect_left(days, day)
    return index < len(days) and days[index] == day


@lru_cache(maxsize=4096)
def _days_in_month(fields: CronFields, year: int, month: int) -> tuple[int, ...]:
    """Return the days of one month, as numbers from 1970-01-01, ascending."""
    if month not in fields.months:
        return ()
    before = date(year, month, 1).toordinal() - _EPOCH - 1
    length = monthrange(year, month)[1]
    weekday_before = (before + 4) % 7  # 1970-01-01 was a Thursday, 0 is Sunday
    return tuple(before + day for day in range(1, length + 1) if _is_named(fields, day, length, weekday_before + day))


def _is_named(fields: CronFields, day: int, length: int, weekday: int) -> bool:
    """Return whether a day of a month is one: where both fields are given, either will do."""
    if fields.days is None and fields.weekdays is None:
        return True
    return _by_day(fields, day, length) or _by_weekday(fields, day, length, weekday % 7)


def _by_day(fields: CronFields, day: int, length: int) -> bool:
    return fields.days is not None and (day in fields.days or (fields.last_day and day == length))


def _by_weekday(fields: CronFields, day: int, length: int, weekday: int) -> bool:
    if fields.weekdays is None:
        return False
    if weekday in fields.weekdays or (weekday, (day + 6) // 7) in fields.nth:
        return True
    return day + 7 > length and (weekday, 0) in fields.nth
